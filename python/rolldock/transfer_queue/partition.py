"""The samples of a partition, as the controller knows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rolldock.transfer_queue.errors import StorageKeyNotFoundError

if TYPE_CHECKING:
    import torch

    from rolldock.transfer_queue.fields import Schema


@dataclass(slots=True)
class Sample:
    """A sample.

    Attributes:
        serial: a number that no other sample has, not even a later one with the same index.
        row: the handle of its row in the queue; `None` until it has data.
        key: its key; `None` for samples without.
        meta: what its owner noted of it.
    """

    serial: int
    row: int | None = None
    key: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass
class FieldState:
    """What is known of a field in the samples that have it.

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
        """Notes that a sample has the field."""
        self.drop(index)
        self.shapes[index] = shape
        self._counts[shape] += 1
        if is_nested:
            self.nested.add(index)

    def drop(self, index: int) -> None:
        """Notes that a sample does not have the field."""
        if index not in self.shapes:
            return
        shape = self.shapes.pop(index)
        self.nested.discard(index)
        self._counts[shape] -= 1
        if not self._counts[shape]:
            del self._counts[shape]

    def schema(self, indexes: Sequence[int]) -> Schema:
        """Returns what is known of the field, for a batch of these samples."""
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
    """The samples of a partition: what they have, what they are called, and which tasks consumed them."""

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

    def get_custom_meta(self, indexes: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Returns what the owners noted of these samples."""
        return {index: self.samples[index].meta for index in indexes if index in self.samples}

    def add(self, index: int, serial: int, key: str | None) -> None:
        """Adds a sample without data."""
        self.samples[index] = Sample(serial, key=key)
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
        return sample.row

    def current(self, index: int, serial: int | None) -> Sample:
        """Returns a sample.

        Raises:
            StorageKeyNotFoundError: the sample was cleared; a later one may have its index.
        """
        sample = self.samples.get(index)
        if sample is None or serial not in (None, sample.serial):
            raise StorageKeyNotFoundError(f"sample index={index} was not found: it was cleared, or never put")
        return sample

    def check_types(self, schemas: Mapping[str, Schema]) -> None:
        """Checks types against those that other samples have.

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
        """Notes that samples have fields."""
        self.check_types(schemas)
        for name, schema in schemas.items():
            state = self.fields.setdefault(name, FieldState(schema["dtype"]))
            shapes = schema.get("per_sample_shapes") or [schema["shape"]] * len(indexes)
            for index, shape in zip(indexes, shapes, strict=True):
                state.put(index, None if shape is None else tuple(shape), schema["is_nested"])

    def has(self, index: int, fields: Iterable[str]) -> bool:
        """Whether a sample has all of these fields."""
        return all(name in self.fields and index in self.fields[name].shapes for name in fields)

    def ready(self, fields: Sequence[str], task: str) -> list[int]:
        """Returns the samples that have the fields and that a task has not consumed, in ascending order."""
        states = [self.fields.get(name) for name in fields]
        if not states or None in states:
            return []
        having = [state.shapes.keys() for state in states if state is not None]
        smallest = min(having, key=len)
        consumed = self.consumed.get(task, ())
        found = [index for index in smallest if index not in consumed and all(index in one for one in having)]
        return sorted(found)

    def common_fields(self, indexes: Sequence[int]) -> list[str]:
        """Returns the fields that all of these samples have."""
        return [
            name for name, state in self.fields.items() if all(index in state.shapes for index in indexes)
        ]

    def places(self) -> list[int]:
        """Returns the indexes of the partition, those in reserve too, in ascending order."""
        return sorted([*self.samples, *self.spare])


def _named(dtype: torch.dtype | None) -> str:
    return "objects" if dtype is None else str(dtype)
