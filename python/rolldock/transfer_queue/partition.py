"""The samples of a partition, as the controller knows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rolldock.transfer_queue.errors import StorageKeyNotFoundError
from rolldock.transfer_queue.ready import Indexes

if TYPE_CHECKING:
    import torch

    from rolldock.transfer_queue.fields import Schema

#: The maximum number of sets of ready samples that a partition keeps. Each set is for a task and its fields.
_READY_MAX = 64


@dataclass(slots=True)
class Sample:
    """A sample.

    Attributes:
        row: the handle of its row in the queue; `None` until it has data.
        key: its key; `None` for samples without a key.
        meta: the notes of its owner.
    """

    row: int | None = None
    key: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def note(self, meta: Mapping[str, Any]) -> None:
        """Adds to the notes. This makes a new dict, because an answer that contains the earlier dict may
        still be waiting to be sent."""
        self.meta = {**self.meta, **meta}


@dataclass
class FieldState:
    """The type of a field, and the samples that have it.

    Attributes:
        dtype: the type of its tensors; `None` for objects.
        shapes: the shape of each sample; `None` for objects.
        nested: the samples whose values were given one by one.
    """

    dtype: torch.dtype | None
    shapes: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    nested: set[int] = field(default_factory=set)
    _counts: Counter[tuple[int, ...] | None] = field(default_factory=Counter)

    def put(self, index: int, shape: tuple[int, ...] | None, is_nested: bool) -> None:
        """Records that a sample has the field."""
        self.drop(index)
        self.shapes[index] = shape
        self._counts[shape] += 1
        if is_nested:
            self.nested.add(index)

    def drop(self, index: int) -> None:
        """Records that a sample does not have the field."""
        if index not in self.shapes:
            return
        shape = self.shapes.pop(index)
        self.nested.discard(index)
        self._counts[shape] -= 1
        if not self._counts[shape]:
            del self._counts[shape]

    def schema(self, indexes: Sequence[int]) -> Schema:
        """Returns the schema of the field for a batch of these samples."""
        is_nested = len(self._counts) > 1 or bool(self.nested)
        schema: Schema = {
            "dtype": self.dtype,
            "shape": None if is_nested else next(iter(self._counts), None),
            "is_nested": is_nested,
            "is_non_tensor": self.dtype is None,
        }
        if is_nested:
            schema["per_sample_shapes"] = [self.shapes.get(index) for index in indexes]
        return schema


class PartitionState:
    """The samples of a partition: their fields, their keys, and the tasks that have consumed them."""

    def __init__(self) -> None:
        #: Each sample by its index.
        self.samples: dict[int, Sample] = {}
        #: Each field that a sample has.
        self.fields: dict[str, FieldState] = {}
        #: The index of each key, in the order of their first puts.
        self.keys: dict[str, int] = {}
        #: The samples that each task has consumed.
        self.consumed: dict[str, set[int]] = {}
        #: Indexes that were reserved when the partition was created, and that no sample has yet.
        self.spare: list[int] = []
        #: The ready samples for each pair of a task and the fields that it requested. The pairs are in the
        #: order of their last use.
        self._ready: dict[tuple[str, frozenset[str]], Indexes] = {}

    def __getstate__(self) -> dict[str, Any]:
        # The ready samples are found again when a task asks for them.
        return {**self.__dict__, "_ready": {}}

    def get_custom_meta(self, indexes: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Returns the notes of these samples."""
        return {index: self.samples[index].meta for index in indexes if index in self.samples}

    def add(self, index: int, key: str | None) -> None:
        """Adds a sample without data."""
        self.samples[index] = Sample(key=key)
        if key is not None:
            self.keys[key] = index

    def remove(self, index: int) -> int | None:
        """Removes a sample. Returns the handle of its row."""
        sample = self.samples.pop(index)
        if sample.key is not None:
            del self.keys[sample.key]
        for name in list(self.fields):
            self.fields[name].drop(index)
            if not self.fields[name].shapes:
                del self.fields[name]
        for consumed in self.consumed.values():
            consumed.discard(index)
        for ready in self._ready.values():
            ready.discard(index)
        return sample.row

    def existing(self, indexes: Iterable[int]) -> list[Sample]:
        """Returns samples.

        Raises:
            StorageKeyNotFoundError: a sample was cleared.
        """
        found = []
        for index in indexes:
            if index not in self.samples:
                raise StorageKeyNotFoundError(
                    f"sample index={index} was not found: it was cleared, or never put"
                )
            found.append(self.samples[index])
        return found

    def check_types(self, schemas: Mapping[str, Schema]) -> None:
        """Checks that fields have the types that they have in other samples.

        Raises:
            ValueError: a field has another type.
        """
        for name, schema in schemas.items():
            known = self.fields.get(name)
            if known is not None and known.dtype != schema["dtype"]:
                raise ValueError(
                    f"dtype mismatch of field={name}: expected {_named(known.dtype)} as in other samples, "
                    f"found {_named(schema['dtype'])}"
                )

    def produced(self, indexes: Sequence[int], schemas: Mapping[str, Schema]) -> None:
        """Records that samples have fields."""
        self.check_types(schemas)
        if not indexes:
            return
        for name, schema in schemas.items():
            state = self.fields.setdefault(name, FieldState(schema["dtype"]))
            shapes = schema.get("per_sample_shapes") or [schema["shape"]] * len(indexes)
            for index, shape in zip(indexes, shapes, strict=True):
                state.put(index, None if shape is None else tuple(shape), schema["is_nested"])
        for (task, fields), ready in self._ready.items():
            if fields.isdisjoint(schemas):
                continue
            consumed = self.consumed.get(task, ())
            for index in indexes:
                if index not in consumed and self.has(index, fields):
                    ready.add(index)

    def consume(self, task: str, indexes: Iterable[int]) -> None:
        """Records that a task has consumed samples. Samples that do not exist are left out."""
        existing = [index for index in indexes if index in self.samples]
        self.consumed.setdefault(task, set()).update(existing)
        for (of_task, _), ready in self._ready.items():
            if of_task == task:
                for index in existing:
                    ready.discard(index)

    def reset(self, task: str | None) -> None:
        """Records that a task, or every task, has consumed nothing."""
        for name in list(self.consumed) if task is None else [task]:
            self.consumed.pop(name, None)
        self._ready = {key: ready for key, ready in self._ready.items() if task not in (None, key[0])}

    def has_consumed_all(self, task: str) -> bool:
        """Whether there are samples, and a task has consumed all of them."""
        return 0 < len(self.consumed.get(task, ())) == len(self.samples) + len(self.spare)

    def has_all(self, fields: Sequence[str]) -> bool:
        """Whether there are samples, and all of them have these fields."""
        size = len(self.samples) + len(self.spare)
        return bool(fields) and all(
            name in self.fields and len(self.fields[name].shapes) == size for name in fields
        )

    def has(self, index: int, fields: Iterable[str]) -> bool:
        """Whether a sample has all of these fields."""
        return all(name in self.fields and index in self.fields[name].shapes for name in fields)

    def ready(self, fields: Sequence[str], task: str) -> Indexes:
        """Returns the samples that have the fields and that a task has not consumed. The first call for a
        task and its fields looks at all samples. Later calls look at none."""
        key = (task, frozenset(fields))
        ready = self._ready.pop(key, None)
        if ready is None:
            ready = Indexes(self._found_ready(key[1], self.consumed.get(task, set())))
            while len(self._ready) >= _READY_MAX:
                del self._ready[next(iter(self._ready))]
        self._ready[key] = ready
        return ready

    def _found_ready(self, fields: frozenset[str], consumed: set[int]) -> list[int]:
        if not fields or not fields <= self.fields.keys():
            return []
        fewest = min((self.fields[name].shapes for name in fields), key=len)
        return [index for index in fewest if index not in consumed and self.has(index, fields)]

    def common_fields(self, indexes: Sequence[int]) -> list[str]:
        """Returns the fields that all of these samples have."""
        return [
            name for name, state in self.fields.items() if all(index in state.shapes for index in indexes)
        ]

    def places(self) -> list[int]:
        """Returns the indexes of the partition, including the reserved ones, in ascending order."""
        return sorted([*self.samples, *self.spare])


def _named(dtype: torch.dtype | None) -> str:
    return "objects" if dtype is None else str(dtype)
