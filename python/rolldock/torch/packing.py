"""Packs rows into flat batches: sequences one after the other, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rolldock.columns import BFLOAT16, Ragged
from rolldock.torch.errors import BadRow, LoaderError

if TYPE_CHECKING:
    from typing_extensions import Self

    from rolldock.columns import Array
    from rolldock.table import Batch, Table

#: The tokens of a micro-batch without rows.
FILLER_TOKENS = 2


@dataclass(frozen=True)
class Fields:
    """The columns of a row that make a flat batch. The defaults are those of a run.

    Attributes:
        prompt: the token ids of the prompt, a list in each row, with at least one item.
        response: the token ids of the response, a list in each row.
        mask: 1 for each token of the response to learn from, else 0, a list in each row.
        advantages: a number for each row, or a list with one for each token of the response.
        rollout_logprobs: the log-probability of each token of the response as the rollout saw it, a list in
            each row. `None` leaves it out, for servers that report none.
        extra: further columns: numbers for each row, or lists with a number for each token of the response,
            such as `values` of a critic.
    """

    prompt: str = "prompt_ids"
    response: str = "response_ids"
    mask: str = "response_mask"
    advantages: str = "advantage"
    rollout_logprobs: str | None = "rollout_logprobs"
    extra: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All columns, each once."""
        logprobs = [] if self.rollout_logprobs is None else [self.rollout_logprobs]
        names = [self.prompt, self.response, self.mask, self.advantages, *logprobs, *self.extra]
        return list(dict.fromkeys(names))

    @property
    def of_lengths(self) -> list[str]:
        """The smallest columns from which the numbers of tokens and of trained tokens can be computed."""
        return [self.prompt, self.mask]


@dataclass(frozen=True)
class Labels:
    """The labels of rows, which the queue keeps beside the columns.

    Attributes:
        handles: shape `(rows,)`, uint64.
        groups: the group of each row.
        policy_versions: the oldest policy version of each row's group; shape `(rows,)`, uint64.
    """

    handles: Array
    groups: list[str]
    policy_versions: Array

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Returns the labels of leased rows."""
        return cls(batch.handles, batch.groups, batch.policy_versions)

    def rows(self) -> list[tuple[int, str]]:
        """Returns the handle and the group of each row, which together identify the row."""
        return list(zip(self.handles.tolist(), self.groups, strict=True))

    def at(self, places: Array) -> Labels:
        """Returns the labels of the rows with these indices."""
        groups = [self.groups[place] for place in places.tolist()]
        return Labels(self.handles[places], groups, self.policy_versions[places])


@dataclass(frozen=True)
class MicroBatch:
    """Some rows as a flat batch. Each row is a sequence, its prompt and then its response. The sequences
    follow one another.

    Values of a token are at the index of that token: `rollout_logprobs[t]` and `loss_mask[t]` belong to
    `input_ids[t]`, which the logits at `t - 1` predict. The first token of a sequence has `loss_mask` false.

    Attributes:
        input_ids: token ids; shape `(tokens,)`, int64.
        position_ids: the position of each token in its sequence, from 0; shape `(tokens,)`, int64.
        loss_mask: true for tokens to learn from; shape `(tokens,)`, bool.
        advantages: 0 in prompts; shape `(tokens,)`, float32.
        rollout_logprobs: in nats, 0 in prompts; shape `(tokens,)`, float32. `None` if the loader's fields
            leave them out.
        cu_seqlens: the start of each sequence, and the end of the last; shape `(sequences + 1,)`, int32.
            Attention kernels for sequences of different lengths take this form.
        max_seqlen: the tokens of the longest sequence.
        extra: the further columns. A column of lists has the shape `(tokens,)`, with 0 in prompts. A column
            of numbers has the shape `(sequences, ...)`.
        handles: the handle of each row; shape `(rows,)`, uint64 of NumPy.
        groups: the group of each row.
        policy_versions: the oldest policy version of each row's group; shape `(rows,)`, uint64 of NumPy.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    loss_mask: torch.Tensor
    advantages: torch.Tensor
    rollout_logprobs: torch.Tensor | None
    cu_seqlens: torch.Tensor
    max_seqlen: int
    extra: dict[str, torch.Tensor]
    handles: Array
    groups: list[str]
    policy_versions: Array

    @property
    def is_filler(self) -> bool:
        """Whether the micro-batch has no rows. A filler is one sequence of two tokens. No token is to learn
        from. With fillers, every rank runs the model equally often.
        """
        return not self.groups

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.groups)

    @property
    def tokens(self) -> int:
        """The number of tokens, including the tokens of a filler."""
        return len(self.input_ids)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Returns the batch with its tensors on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Returns the batch with its tensors in pinned memory."""
        return self._each(torch.Tensor.pin_memory)

    def _each(self, change: Any) -> Self:
        changed: dict[str, Any] = {"extra": {name: change(tensor) for name, tensor in self.extra.items()}}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor):
                changed[field.name] = change(value)
        return replace(self, **changed)


def lengths_of(table: Table, names: Fields) -> tuple[Array, Array]:
    """Returns, for each row, the number of tokens and the number of tokens to learn from. Both have the shape
    `(rows,)`, int64."""
    mask = table.ragged(names.mask)
    marked = np.concatenate(([0], np.cumsum(mask.flat() != 0)))
    offsets = mask.offsets.astype(np.int64) - int(mask.offsets[0])
    return table.ragged(names.prompt).lengths + mask.lengths, marked[offsets[1:]] - marked[offsets[:-1]]


def pack(table: Table, places: Array, labels: Labels, names: Fields) -> MicroBatch:
    """Packs some rows of a table.

    Args:
        table: the rows, with the columns of `names`.
        places: the indices of the rows, in the order of the sequences; shape `(rows,)`. Without rows the
            result is a filler, and the table gives the types of the columns.
        labels: the labels of these rows, in the same order.
        names: the columns.

    Raises:
        BadRow: a prompt is empty, or a list is not as long as its response.
        TypeError: a column has another type.
    """
    return _Packing(table, places, labels, names).packed()


class _Packing:
    """The layout of some sequences."""

    def __init__(self, table: Table, places: Array, labels: Labels, names: Fields) -> None:
        self._table, self._places, self._labels, self._names = table, places, labels, names
        self._prompt, self._response = self._ids(names.prompt), self._ids(names.response)
        prompts, self._responses = self._prompt.lengths[places], self._response.lengths[places]
        if not prompts.all():
            self._bad(int(prompts.argmin()), f"{names.prompt} is empty; expected at least one token")
        lengths = prompts + self._responses if len(places) else np.array([FILLER_TOKENS])
        ends = np.cumsum(lengths)
        self._tokens = int(ends[-1])
        if self._tokens > np.iinfo(np.int32).max:
            raise LoaderError(f"expected fewer than 2**31 tokens in a micro-batch, found {self._tokens}")
        self._cu_seqlens = np.concatenate(([0], ends)).astype(np.int32)
        self._max_seqlen = int(lengths.max())
        self._positions = np.arange(self._tokens) - np.repeat(ends - lengths, lengths)
        prompts = prompts if len(places) else lengths
        self._is_response = self._positions >= np.repeat(prompts, lengths)

    def packed(self) -> MicroBatch:
        names = self._names
        input_ids = np.zeros(self._tokens, dtype=np.int64)
        if len(self._places):
            input_ids[~self._is_response] = _gathered(self._prompt, self._places)
            input_ids[self._is_response] = _gathered(self._response, self._places)
        mask = self._scattered(names.mask, None)
        logprobs = names.rollout_logprobs
        logprobs = None if logprobs is None else torch.from_numpy(self._scattered(logprobs, np.dtype("f4")))
        return MicroBatch(
            input_ids=torch.from_numpy(input_ids),
            position_ids=torch.from_numpy(self._positions),
            loss_mask=torch.from_numpy(mask != 0),
            advantages=torch.from_numpy(self._advantages()),
            rollout_logprobs=logprobs,
            cu_seqlens=torch.from_numpy(self._cu_seqlens),
            max_seqlen=self._max_seqlen,
            extra=dict(self._extra()),
            handles=self._labels.handles,
            groups=self._labels.groups,
            policy_versions=self._labels.policy_versions,
        )

    def _advantages(self) -> Array:
        name = self._names.advantages
        if self._table.column(name).kind == "list":
            return self._scattered(name, np.dtype("f4"))
        flat = np.zeros(self._tokens, dtype=np.float32)
        of_rows = self._of_rows(name)
        if of_rows.ndim != 1:
            raise BadRow(f"expected one number in each row of {name}, found the shape {of_rows.shape[1:]}")
        of_rows = _floats(of_rows) if self._table.column(name).extension == BFLOAT16 else of_rows
        flat[self._is_response] = np.repeat(of_rows[: len(self._places)], self._responses)
        return flat

    def _extra(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self._names.extra:
            column = self._table.column(name)
            is_list = column.kind == "list"
            values = self._scattered(name, None) if is_list else self._of_rows(name)
            tensor = torch.from_numpy(values)
            is_bfloat16 = (column.items() if is_list else column).extension == BFLOAT16
            yield name, tensor.view(torch.bfloat16) if is_bfloat16 else tensor

    def _of_rows(self, name: str) -> Array:
        values = self._table.array(name)
        if values.dtype.kind == "O" or np.ma.is_masked(values):
            raise BadRow(f"expected a number in each row of {name}, found nulls, strings or bytes")
        if len(self._places):
            return np.ascontiguousarray(values[self._places])
        return np.zeros((1, *values.shape[1:]), dtype=values.dtype)

    def _scattered(self, name: str, dtype: np.dtype[Any] | None) -> Array:
        """Returns a column with an item for each token of a response, with 0 in prompts."""
        values = self._lists(name)
        lengths = values.lengths[self._places]
        if not np.array_equal(lengths, self._responses):
            row = int((lengths != self._responses).argmax())
            self._bad(
                row,
                f"{name} has {lengths[row]} items; expected {self._responses[row]}, one for each token of "
                f"{self._names.response}",
            )
        items = _gathered(values, self._places)
        if dtype == np.float32 and self._table.column(name).items().extension == BFLOAT16:
            items = _floats(items)
        flat = np.zeros((self._tokens, *items.shape[1:]), dtype=items.dtype if dtype is None else dtype)
        flat[self._is_response] = items
        return flat

    def _ids(self, name: str) -> Ragged:
        ids = self._lists(name)
        dtype = ids.flat().dtype
        if dtype.kind not in "iu":
            raise BadRow(f"expected lists of integers in {name}, found lists of {dtype}")
        return ids

    def _lists(self, name: str) -> Ragged:
        values = self._table.ragged(name)
        if isinstance(values.flat(), np.ma.MaskedArray):
            raise BadRow(f"expected lists without nulls in {name}")
        return values

    def _bad(self, row: int, reason: str) -> None:
        labels = self._labels
        raise BadRow(f"group={labels.groups[row]} handle={int(labels.handles[row])}: {reason}")


def _floats(bits: Array) -> Array:
    """Returns bfloat16 numbers, given as their bits in uint16, as float32."""
    floats: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return floats


def _gathered(lists: Ragged, places: Array) -> Array:
    """Returns the items of the lists with these indices, one after the other."""
    lengths = lists.lengths[places]
    starts = lists.offsets.astype(np.int64)[places] - (np.cumsum(lengths) - lengths)
    gathered: Array = lists.values[np.repeat(starts, lengths) + np.arange(int(lengths.sum()))]
    return gathered
