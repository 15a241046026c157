"""The samples of a `BatchMeta`, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolldock.transfer_queue.metadata import BatchMeta


class SampleView:
    """One sample of a `BatchMeta`, read-only."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: BatchMeta, row: int) -> None:
        self._batch = batch
        self._row = row

    @property
    def global_index(self) -> int:
        """Its index among the samples of all partitions."""
        return self._batch.global_indexes[self._row]

    @property
    def partition_id(self) -> str:
        """Its partition."""
        return self._batch.partition_ids[self._row]

    @property
    def production_status(self) -> int:
        """1 if the fields of the batch are ready for it, else 0."""
        return int(self._batch.production_status[self._row])

    @property
    def custom_meta(self) -> Mapping[str, Any]:
        """The notes of its owner, read-only."""
        return MappingProxyType(self._batch.custom_meta[self._row])

    @property
    def fields(self) -> Mapping[str, Mapping[str, Any]]:
        """The schema of each field. Its `shape` is the shape in this sample."""
        views: dict[str, Mapping[str, Any]] = {}
        for name, schema in self._batch.field_schema.items():
            view = {key: value for key, value in schema.items() if key != "per_sample_shapes"}
            view["shape"] = self._batch.get_shapes(name)[self._row]
            views[name] = MappingProxyType(view)
        return MappingProxyType(views)


class Samples(Sequence[SampleView]):
    def __init__(self, batch: BatchMeta) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.size

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [SampleView(self._batch, one) for one in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"sample {row} of {len(self)}")
        return SampleView(self._batch, row % len(self))
