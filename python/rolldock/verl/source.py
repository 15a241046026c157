"""Converts leased rows to tensors of verl's types, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from rolldock.columns import Ragged
from rolldock.verl.errors import BadBatch

if TYPE_CHECKING:
    from rolldock.columns import Array
    from rolldock.table import AsyncBatch, Batch

    Leased: TypeAlias = Batch | AsyncBatch

#: The number of turns that verl counts for a conversation of a prompt and a response.
SINGLE_TURN = 2


@dataclass(frozen=True)
class Columns:
    """The columns of a row that make a batch of verl. The defaults are those of a run.

    Attributes:
        prompt: the token ids of the prompt, a list in each row.
        response: the token ids of the response, a list in each row.
        mask: 1 for each token of the response to learn from, else 0, a list in each row.
        rollout_logprobs: the log-probability of each token of the response, in nats, a list in each row.
            `None` leaves it out, for servers that report none.
        reward: the reward of each row. `None` leaves it out.
        advantages: the advantage of each row, or a list with one for each token of the response. `None`, the
            default, leaves it out: verl computes advantages itself.
        data_source: the name of the data set of each row. `None` leaves it out.
        ground_truth: the right answer of each row. `None` leaves it out.
        versions: the oldest and the newest policy version of each row. `None` leaves them out.
        turns: the number of turns of each row. `None` for rows with a prompt and a response, which are two.
        infos: what verl calls the extra information of the reward: a number or a string in each row.
        extra: further columns, which keep their names: numbers, lists with a number for each token of the
            response, such as `ref_log_prob` of a reference model, or strings.
    """

    prompt: str = "prompt_ids"
    response: str = "response_ids"
    mask: str = "response_mask"
    rollout_logprobs: str | None = "rollout_logprobs"
    reward: str | None = "reward"
    advantages: str | None = None
    data_source: str | None = "data_source"
    ground_truth: str | None = "ground_truth"
    versions: tuple[str, str] | None = ("policy_version_min", "policy_version_max")
    turns: str | None = None
    infos: tuple[str, ...] = ("score", "acc")
    extra: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All columns, each once, for `columns` of a take."""
        single = (self.rollout_logprobs, self.reward, self.advantages, self.data_source, self.ground_truth)
        optional = [*single, *(self.versions or ()), self.turns]
        given = [name for name in optional if name is not None]
        return list(dict.fromkeys([self.prompt, self.response, self.mask, *given, *self.infos, *self.extra]))


@dataclass(frozen=True)
class Flat:
    """Lists of different lengths, one after the other.

    Attributes:
        values: shape `(items, ...)`.
        lengths: the items of each row; shape `(rows,)`, int64.
    """

    values: torch.Tensor
    lengths: torch.Tensor

    def padded(self, length: int, fill: float = 0, side: Literal["left", "right"] = "right") -> torch.Tensor:
        """Returns the lists as one tensor of shape `(rows, length, ...)`, padded with `fill`."""
        offsets = np.concatenate(([0], np.cumsum(self.lengths.numpy())))
        is_bfloat16 = self.values.dtype == torch.bfloat16
        # NumPy has no bfloat16, so it pads int16 instead. Zero has the same bits in both types.
        values = self.values.view(torch.int16) if is_bfloat16 else self.values
        padded = torch.from_numpy(Ragged(values.numpy(), offsets).padded(fill, length, side)[0])
        return padded.view(torch.bfloat16) if is_bfloat16 else padded

    def jagged(self) -> torch.Tensor:
        """Returns the lists as a nested tensor of the jagged layout, with the shape `(rows, ragged, ...)`."""
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])
        return torch.nested.nested_tensor_from_jagged(self.values, offsets)


class Source:
    """The rows of a batch. The tensors are copies, so verl may change them.

    Raises:
        BadBatch: a column is absent or has another type, a prompt or a response is empty, or a list is not as
            long as its response.
    """

    def __init__(self, batch: Leased, columns: Columns) -> None:
        self._batch, self._columns = batch, columns
        if not len(batch):
            raise BadBatch("expected at least one row, found none")
        lacking = [name for name in columns.names if name not in batch]
        if lacking:
            raise BadBatch(
                f"expected the columns {lacking}, found only {batch.names}; name others in Columns, or None"
            )
        #: Token ids, int64.
        self.prompts = self._ids(columns.prompt)
        #: Token ids, int64.
        self.responses = self._ids(columns.response)

    @property
    def handles(self) -> torch.Tensor:
        """The handle of each row, whose 64 bits are stored as int64; shape `(rows,)`."""
        return torch.from_numpy(self._batch.handles.astype(np.uint64).view(np.int64))

    def of_responses(self) -> dict[str, Flat]:
        """Returns the tensors with a value for each token of the response, by verl's names."""
        columns = self._columns
        lists = {
            "responses": self.responses,
            "response_mask": self._of_tokens(columns.mask, torch.int64),
        }
        if columns.rollout_logprobs is not None:
            lists["rollout_log_probs"] = self._of_tokens(columns.rollout_logprobs, torch.float32)
        if columns.reward is not None:
            scores = self._at_last_token(columns.reward)
            for name in ("rm_scores", "token_level_scores", "token_level_rewards"):
                lists[name] = Flat(scores.clone(), self.responses.lengths)
        if columns.advantages is not None:
            advantages = self._advantages(columns.advantages, lists["response_mask"].values)
            lists["advantages"] = advantages
            lists["returns"] = Flat(advantages.values.clone(), advantages.lengths)
        for name in columns.extra:
            if self._batch.column(name).kind == "list":
                lists[name] = self._of_tokens(name, None)
        return lists

    def extra_of_rows(self) -> tuple[dict[str, torch.Tensor], dict[str, list[Any]]]:
        """Returns the further columns with one value for each row: tensors, and strings."""
        tensors, words = {}, {}
        for name in self._columns.extra:
            kind = self._batch.column(name).kind
            if kind == "string":
                words[name] = self.values(name)
            elif kind != "list":
                tensors[name] = self._numbers(name)
        return tensors, words

    def labels(self) -> dict[str, list[Any]]:
        """Returns the labels of each row, by verl's names."""
        columns = self._columns
        labels: dict[str, list[Any]] = {"uid": self._batch.groups}
        if columns.data_source is not None:
            labels["data_source"] = self.values(columns.data_source)
        if columns.ground_truth is not None:
            answers = self.values(columns.ground_truth)
            labels["reward_model"] = [{"style": "rule", "ground_truth": answer} for answer in answers]
        return labels

    def versions(self) -> dict[str, list[int]]:
        """Returns the policy versions of each row, by verl's names; no field if `Columns` leaves them out."""
        names = self._columns.versions
        if names is None:
            return {}
        named = zip(("min_global_steps", "max_global_steps"), names, strict=True)
        return {field: [int(value) for value in self.values(name)] for field, name in named}

    def infos(self) -> dict[str, list[Any]]:
        """Returns the extra information of the reward."""
        return {name: self.values(name) for name in self._columns.infos}

    def turns(self) -> list[int]:
        """Returns the number of turns of each row."""
        name = self._columns.turns
        return [SINGLE_TURN] * len(self._batch) if name is None else [int(one) for one in self.values(name)]

    def values(self, name: str) -> list[Any]:
        """Returns a column of strings or numbers."""
        column = self._batch.column(name)
        if column.kind not in ("number", "boolean", "string") or column.nulls() is not None:
            raise BadBatch(f"column={name}: expected a number or a string in each row, found {column.dtype}")
        values: list[Any] = self._batch.array(name).tolist()
        if None in values:
            raise BadBatch(f"column={name}: expected a value in each row, found nulls")
        return values

    def _ids(self, name: str) -> Flat:
        flat = self._lists(name, torch.int64)
        if not flat.lengths.all():
            row = int(flat.lengths.argmin())
            self._bad(row, f"{name} is empty; expected at least one token")
        return flat

    def _of_tokens(self, name: str, dtype: torch.dtype | None) -> Flat:
        flat, expected = self._lists(name, dtype), self.responses.lengths
        if not torch.equal(flat.lengths, expected):
            row = int((flat.lengths != expected).int().argmax())
            self._bad(
                row,
                f"{name} has {int(flat.lengths[row])} items; expected {int(expected[row])}, one for each "
                f"token of {self._columns.response}",
            )
        return flat

    def _lists(self, name: str, dtype: torch.dtype | None) -> Flat:
        column = self._batch.column(name)
        is_integer = dtype == torch.int64
        if column.kind != "list" or column.items().kind not in ("number", "boolean"):
            raise BadBatch(f"column={name}: expected lists of numbers, found {column.dtype}")
        try:
            nested = self._batch.torch(name)
        except (TypeError, ValueError) as error:
            raise BadBatch(f"column={name}: {error}") from error
        values = nested.values()
        if is_integer and values.dtype.is_floating_point:
            raise BadBatch(f"column={name}: expected lists of integers, found {column.dtype}")
        return Flat(values.to(dtype or values.dtype, copy=True), nested.offsets().diff())

    def _numbers(self, name: str) -> torch.Tensor:
        try:
            return self._batch.torch(name).clone()
        except (TypeError, ValueError) as error:
            raise BadBatch(f"column={name}: expected a number in each row: {error}") from error

    def _at_last_token(self, name: str) -> torch.Tensor:
        """Returns the number of each row at the last token of the row's response, and 0 at other tokens."""
        of_rows = self._of_rows(name)
        scores = torch.zeros(len(self.responses.values), dtype=torch.float32)
        scores[self.responses.lengths.cumsum(0) - 1] = of_rows
        return scores

    def _advantages(self, name: str, mask: torch.Tensor) -> Flat:
        if self._batch.column(name).kind == "list":
            return self._of_tokens(name, torch.float32)
        lengths = self.responses.lengths
        return Flat(self._of_rows(name).repeat_interleave(lengths) * mask, lengths)

    def _of_rows(self, name: str) -> torch.Tensor:
        numbers = self._numbers(name)
        if numbers.ndim != 1 or numbers.is_nested:
            found = self._batch.column(name).dtype
            raise BadBatch(f"column={name}: expected one number in each row, found {found}")
        return numbers.to(torch.float32)

    def _bad(self, row: int, reason: str) -> None:
        group, handle = self._batch.groups[row], int(self._batch.handles[row])
        raise BadBatch(f"group={group} handle={handle}: {reason}")


def objects(values: list[Any]) -> Array:
    """Returns an array of objects, in which verl keeps values other than tensors; shape `(rows,)`."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
