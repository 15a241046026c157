"""Divides rows among replicas and among micro-batches."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from rolldock.torch.errors import LoaderError

if TYPE_CHECKING:
    from rolldock.columns import Array

#: A function from the lengths of sequences, in tokens, to their costs. Both are arrays of the shape
#: `(rows,)`.
Cost: TypeAlias = "Callable[[Array], Array]"


@dataclass(frozen=True)
class Flops:
    """The floating-point operations of a forward pass over a sequence, for a decoder with causal attention:
    `2 * parameters * length + 2 * layers * hidden_size * length ** 2`.

    The first term has a multiplication and an addition for each parameter and token. The second has the two
    products of attention, each over half of the `length ** 2` pairs. A backward pass costs twice as much
    at every length, so it does not change how rows are divided.

    Attributes:
        parameters: the number of parameters that each token is multiplied with: without the input embedding,
            and with the output layer. In a mixture of experts, a token uses only its own experts.
        layers: the number of layers.
        hidden_size: the width of attention, which is the number of query heads times the size of a head. In
            some models it differs from the configuration's `hidden_size`.
    """

    parameters: float
    layers: int
    hidden_size: int

    def __call__(self, lengths: Array) -> Array:
        """Returns the operations of sequences with these lengths in tokens, shape `(rows,)`, float64."""
        length = np.asarray(lengths, dtype=np.float64)
        of_attention: Array = 2.0 * self.layers * self.hidden_size * length**2
        return 2.0 * self.parameters * length + of_attention


def costs_of(lengths: Array, by: Literal["tokens"] | Cost) -> Array:
    """Returns the cost of each row, shape `(rows,)`, float64.

    Raises:
        LoaderError: a cost function returned another shape, or a cost that is negative or not finite.
    """
    if by == "tokens":
        return lengths.astype(np.float64)
    costs = np.asarray(by(lengths), dtype=np.float64)
    if costs.shape != lengths.shape or not np.all(np.isfinite(costs)) or np.any(costs < 0):
        raise LoaderError(
            f"expected a cost of at least 0 for each of {len(lengths)} lengths, found an array of shape "
            f"{costs.shape}" + ("" if costs.shape != lengths.shape else " with other values")
        )
    return costs


def balanced(costs: Array, parts: int) -> list[Array]:
    """Divides rows into parts of about equal cost. The most expensive row is assigned first, and each row
    goes to the part that has the lowest cost at that moment. The costs of two parts differ by at most the
    largest cost of a row.

    Args:
        costs: shape `(rows,)`.
        parts: the number of parts.

    Returns:
        The indices of the rows of each part, in rising order. Parts are empty only if there are fewer rows
        than parts.
    """
    places: list[list[int]] = [[] for _ in range(parts)]
    # Among parts of equal cost, the part with the fewest rows comes first, so that rows without cost are
    # divided too.
    cheapest = [(0.0, 0, part) for part in range(parts)]
    for place in np.argsort(-costs, kind="stable").tolist():
        cost, rows, part = cheapest[0]
        places[part].append(place)
        heapq.heapreplace(cheapest, (cost + float(costs[place]), rows + 1, part))
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in places]


def fewest(lengths: Array, tokens: int) -> list[Array]:
    """Divides rows into few parts of at most `tokens` tokens, by first-fit decreasing. The number of parts is
    at most 11/9 of the smallest possible number, plus one. A row of more than `tokens`
    tokens is a part of its own.
    """
    room = np.empty(len(lengths), dtype=np.int64)
    parts: list[list[int]] = []
    for place in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[place])
        fitting = room[: len(parts)] >= length
        part = int(fitting.argmax()) if fitting.any() else len(parts)
        if part == len(parts):
            parts.append([])
            room[part] = tokens
        parts[part].append(place)
        room[part] -= length
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]


def micro_batches(lengths: Array, tokens: int, count: int) -> list[Array]:
    """Divides rows into micro-batches of at most `tokens` tokens.

    Args:
        lengths: the tokens of each row, shape `(rows,)`.
        tokens: the budget. A longer row is a micro-batch of its own.
        count: the number of micro-batches, at least the number of parts that `fewest` returns.

    Returns:
        The indices of the rows of each micro-batch, in rising order. Some micro-batches are empty if there
        are fewer rows than micro-batches.
    """
    even = balanced(lengths.astype(np.float64), count)
    if all(len(part) < 2 or int(lengths[part].sum()) <= tokens for part in even):
        return even
    parts = fewest(lengths, tokens)
    while len(parts) < count:
        widest = max(range(len(parts)), key=lambda part: len(parts[part]))
        halves = balanced(lengths[parts[widest]].astype(np.float64), 2)
        whole = parts[widest]
        parts[widest] = whole[halves[0]]
        parts.append(whole[halves[1]])
    return parts
