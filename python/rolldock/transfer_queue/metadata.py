"""The metadata of samples: `BatchMeta` by index, `KVBatchMeta` by key."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rolldock.transfer_queue.fields import Schema, schema_of
from rolldock.transfer_queue.kv_metadata import KVBatchMeta
from rolldock.transfer_queue.parts import chunked, joined_info
from rolldock.transfer_queue.samples import Samples, SampleView

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

    from rolldock.columns import Array

__all__ = ["BatchMeta", "KVBatchMeta"]


class BatchMeta:
    """The metadata of a batch of samples.

    Attributes:
        global_indexes: the index of each sample among the samples of all partitions.
        partition_ids: the partition of each sample.
        field_schema: the schema of each field; see `Schema`.
        production_status: 1 where the fields are ready, else 0; shape `(samples,)`, int8.
        extra_info: the notes of the batch, for its owner.
        custom_meta: the notes of each sample, for its owner.

    Raises:
        ValueError: lengths differ.
    """

    __slots__ = (
        "_custom_backend_meta",
        "custom_meta",
        "extra_info",
        "field_schema",
        "global_indexes",
        "partition_ids",
        "production_status",
    )

    def __init__(
        self,
        global_indexes: Sequence[int],
        partition_ids: Sequence[str],
        field_schema: Mapping[str, Schema] | None = None,
        production_status: Any = None,
        extra_info: Mapping[str, Any] | None = None,
        custom_meta: Sequence[Mapping[str, Any]] | None = None,
        _custom_backend_meta: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        size = len(global_indexes)
        self.global_indexes = list(global_indexes)
        self.partition_ids = list(partition_ids)
        self.field_schema: dict[str, Schema] = {
            name: dict(schema) for name, schema in (field_schema or {}).items()
        }
        self.extra_info: dict[str, Any] = dict(extra_info or {})
        self.production_status: Array = (
            np.zeros(size, np.int8) if production_status is None else np.array(production_status, np.int8)
        )
        self.custom_meta: list[dict[str, Any]] = _copied(custom_meta, size)
        self._custom_backend_meta: list[dict[str, Any]] = _copied(_custom_backend_meta, size)
        aligned: list[tuple[str, Sequence[Any]]] = [
            ("partition_ids", self.partition_ids),
            ("production_status", self.production_status.tolist()),
            ("custom_meta", self.custom_meta),
            ("_custom_backend_meta", self._custom_backend_meta),
        ]
        for name, schema in self.field_schema.items():
            if schema.get("per_sample_shapes") is not None:
                aligned.append((f"per_sample_shapes of field={name}", schema["per_sample_shapes"]))
        for name, values in aligned:
            if len(values) != size:
                raise ValueError(f"expected {name} of {size} samples, found length {len(values)}")

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, slot) for slot in self.__slots__)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for slot, value in zip(self.__slots__, state, strict=True):
            # Some serializers return arrays that are views of their buffers.
            is_view = isinstance(value, np.ndarray) and not value.flags.writeable
            setattr(self, slot, value.copy() if is_view else value)

    def __len__(self) -> int:
        return self.size

    def __str__(self) -> str:
        return (
            f"BatchMeta(size={self.size}, field_names={self.field_names}, is_ready={self.is_ready}, "
            f"global_indexes={self.global_indexes}, extra_info={self.extra_info})"
        )

    __repr__ = __str__

    def __getitem__(self, item: int | slice) -> BatchMeta:
        """Returns a batch of one sample, or of a slice of the samples."""
        if isinstance(item, slice):
            return self.select_samples(list(range(*item.indices(self.size))))
        if not isinstance(item, int | np.integer):
            raise TypeError(f"expected a number or a slice as index, found {type(item).__name__}")
        if not -self.size <= item < self.size:
            raise IndexError(f"sample {item} of {self.size}")
        return self.select_samples([int(item) % self.size])

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self.global_indexes)

    @property
    def field_names(self) -> list[str]:
        """The names of the fields, in order."""
        return sorted(self.field_schema)

    @property
    def is_ready(self) -> bool:
        """Whether there are samples, and all are ready."""
        return self.size > 0 and bool((self.production_status == 1).all())

    @property
    def samples(self) -> Sequence[SampleView]:
        """Each sample, read-only."""
        return Samples(self)

    def get_dtypes(self, field_name: str) -> list[torch.dtype | None]:
        """Returns the type of a field in each sample; `None` if it holds objects.

        Raises:
            KeyError: there is no such field.
        """
        return [self._schema(field_name).get("dtype")] * self.size

    def get_shapes(self, field_name: str) -> list[Any]:
        """Returns the shape of a field in each sample.

        Raises:
            KeyError: there is no such field.
        """
        schema = self._schema(field_name)
        if schema.get("per_sample_shapes") is not None:
            return list(schema["per_sample_shapes"])
        return [schema.get("shape")] * self.size

    def _schema(self, name: str) -> Schema:
        if name not in self.field_schema:
            raise KeyError(f"expected one of the fields {self.field_names}, found {name!r}")
        return self.field_schema[name]

    def get_extra_info(self, key: str, default: Any = None) -> Any:
        """Returns a note of the batch."""
        return self.extra_info.get(key, default)

    def set_extra_info(self, key: str, value: Any) -> None:
        """Sets a note of the batch."""
        self.extra_info[key] = value

    def get_all_extra_info(self) -> dict[str, Any]:
        """Returns a copy of the notes of the batch."""
        return copy.deepcopy(self.extra_info)

    def update_extra_info(self, info_dict: Mapping[str, Any]) -> None:
        """Sets several notes of the batch."""
        self.extra_info.update(info_dict)

    def remove_extra_info(self, key: str) -> Any:
        """Removes a note of the batch and returns it; `None` if there is none."""
        return self.extra_info.pop(key, None)

    def clear_extra_info(self) -> None:
        """Removes all notes of the batch."""
        self.extra_info.clear()

    def has_extra_info(self, key: str) -> bool:
        """Whether the batch has a note."""
        return key in self.extra_info

    def get_all_custom_meta(self) -> list[dict[str, Any]]:
        """Returns a copy of the notes of each sample."""
        return copy.deepcopy(self.custom_meta)

    def update_custom_meta(self, custom_meta: Sequence[Mapping[str, Any]] | None) -> None:
        """Adds notes to each sample.

        Raises:
            ValueError: there is not one item for each sample.
        """
        if custom_meta is None:
            return
        if len(custom_meta) != self.size:
            raise ValueError(f"expected custom_meta of {self.size} samples, found length {len(custom_meta)}")
        for own, more in zip(self.custom_meta, custom_meta, strict=True):
            own.update(more)

    def clear_custom_meta(self) -> None:
        """Removes the notes of each sample."""
        self.custom_meta = [{} for _ in range(self.size)]

    def add_fields(self, tensor_dict: TensorDict, set_all_ready: bool = True) -> BatchMeta:
        """Adds the fields of data to this batch. Returns the batch.

        Raises:
            ValueError: the data have another number of samples.
        """
        size = tensor_dict.batch_size[0]
        if size == 0:
            return self
        if size != self.size:
            raise ValueError(f"expected data of {self.size} samples, found batch size mismatch: {size}")
        self.field_schema.update(schema_of(tensor_dict))
        if set_all_ready:
            self.production_status[:] = 1
        return self

    def _picked(self, rows: Sequence[int], schema: Mapping[str, Schema]) -> BatchMeta:
        picked = {name: dict(one) for name, one in schema.items()}
        for one in picked.values():
            if one.get("per_sample_shapes") is not None:
                one["per_sample_shapes"] = [one["per_sample_shapes"][row] for row in rows]
        return BatchMeta(
            [self.global_indexes[row] for row in rows],
            [self.partition_ids[row] for row in rows],
            picked,
            self.production_status[list(rows)],
            copy.deepcopy(self.extra_info),
            [copy.deepcopy(self.custom_meta[row]) for row in rows],
            [copy.deepcopy(self._custom_backend_meta[row]) for row in rows],
        )

    def select_samples(self, sample_indices: Sequence[int]) -> BatchMeta:
        """Returns the samples at these positions in the batch.

        Raises:
            ValueError: the batch has no such position.
        """
        if any(not 0 <= row < self.size for row in sample_indices):
            raise ValueError(f"expected places in range [0, {self.size}), found {list(sample_indices)}")
        return self._picked(sample_indices, self.field_schema)

    def select_fields(self, field_names: Sequence[str]) -> BatchMeta:
        """Returns the batch with only these fields. Names of other fields are ignored."""
        known = {name: self.field_schema[name] for name in field_names if name in self.field_schema}
        return self._picked(range(self.size), known)

    def copy(self) -> BatchMeta:
        """Returns a copy that shares nothing."""
        return self._picked(range(self.size), self.field_schema)

    def chunk(self, chunks: int) -> list[BatchMeta]:
        """Splits the batch into `chunks` parts of about equal size, the larger ones first."""
        return [self.select_samples(rows) for rows in chunked(self.size, chunks)]

    def chunk_by_partition(self) -> list[BatchMeta]:
        """Splits the batch into one part for each partition."""
        rows: dict[str, list[int]] = {}
        for row, partition in enumerate(self.partition_ids):
            rows.setdefault(partition, []).append(row)
        return [self.select_samples(of_one) for of_one in rows.values()]

    def reorder(self, indices: Sequence[int]) -> None:
        """Puts the samples into this order: sample `indices[i]` becomes sample `i`.

        Raises:
            ValueError: `indices` does not have each position of the batch once.
        """
        if sorted(indices) != list(range(self.size)):
            raise ValueError(f"expected an order of {self.size} samples, found {list(indices)}")
        ordered = self._picked(indices, self.field_schema)
        for slot in self.__slots__:
            setattr(self, slot, getattr(ordered, slot))

    def union(self, other: BatchMeta) -> BatchMeta:
        """Returns the samples with the fields of both batches. A field that both have is taken from `other`.

        Raises:
            ValueError: the batches have different samples.
        """
        if not other or self.size == 0:
            return other.copy() if other else self.copy()
        for name in ("global_indexes", "partition_ids"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(
                    f"{name} do not match: found {getattr(self, name)} and {getattr(other, name)}"
                )
        both, more = self.copy(), other.copy()
        both.field_schema.update(more.field_schema)
        both.extra_info.update(more.extra_info)
        # Each batch knows its own fields only.
        both.production_status = np.bitwise_and(self.production_status, other.production_status)
        for row in range(self.size):
            both.custom_meta[row].update(more.custom_meta[row])
            both._custom_backend_meta[row].update(more._custom_backend_meta[row])
        return both

    @classmethod
    def concat(cls, data: Sequence[BatchMeta], validate: bool = True) -> BatchMeta:
        """Joins batches.

        Raises:
            ValueError: the fields or their types differ (unless `validate` is false), or the notes of the
                batches differ.
        """
        parts = [part for part in data if part]
        if not parts:
            return cls.empty()
        if validate:
            for part in parts:
                _check_fields(parts[0], part)
        schema: dict[str, Schema] = {}
        for name, first in parts[0].field_schema.items():
            of_parts = [part.field_schema.get(name, {}) for part in parts]
            shapes = [shape for part in parts for shape in _shapes(part, name)]
            differ = any(one.get("is_nested") for one in of_parts) or len(set(map(str, shapes))) > 1
            schema[name] = {**first, "is_nested": differ, "shape": None if differ else first.get("shape")}
            if differ:
                schema[name]["per_sample_shapes"] = shapes
        return cls(
            [index for part in parts for index in part.global_indexes],
            [partition for part in parts for partition in part.partition_ids],
            schema,
            np.concatenate([part.production_status for part in parts]),
            joined_info([part.extra_info for part in parts]),
            [meta for part in parts for meta in part.custom_meta],
            [meta for part in parts for meta in part._custom_backend_meta],
        )

    @classmethod
    def empty(cls, extra_info: Mapping[str, Any] | None = None) -> BatchMeta:
        """Returns a batch without samples."""
        return cls([], [], extra_info=extra_info)


def _copied(metas: Sequence[Mapping[str, Any]] | None, size: int) -> list[dict[str, Any]]:
    return [dict(meta) for meta in metas] if metas else [{} for _ in range(size)]


def _shapes(part: BatchMeta, name: str) -> list[Any]:
    return part.get_shapes(name) if name in part.field_schema else [None] * part.size


def _check_fields(first: BatchMeta, part: BatchMeta) -> None:
    if part.field_names != first.field_names:
        raise ValueError(f"field names do not match: found {first.field_names} and {part.field_names}")
    for name in first.field_names:
        expected, found = first.field_schema[name].get("dtype"), part.field_schema[name].get("dtype")
        if expected != found:
            raise ValueError(f"dtype mismatch of field={name}: found {expected} and {found}")
