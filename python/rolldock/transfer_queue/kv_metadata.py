"""The metadata of samples by key."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rolldock.transfer_queue.parts import chunked, joined_info


@dataclass
class KVBatchMeta:
    """The metadata of samples that have keys.

    Attributes:
        keys: the key of each sample.
        tags: the tags of each sample.
        partition_id: their partition.
        fields: the names of the fields that all of them have.
        extra_info: the notes of the batch, for its owner.

    Raises:
        ValueError: there is not one tag for each key, or a key or a field is named twice.
    """

    keys: list[str] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)
    partition_id: str | None = None
    fields: list[str] | None = None
    extra_info: dict[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.tags):
            raise ValueError(
                f"keys and tags must have same length: found {len(self.keys)} and {len(self.tags)}"
            )
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("Got duplicated keys: each may be named once")
        if self.fields is not None and len(set(self.fields)) != len(self.fields):
            raise ValueError("Got duplicated fields: each may be named once")
        self.keys = list(self.keys)
        self.tags = copy.deepcopy(list(self.tags))
        self.extra_info = copy.deepcopy(self.extra_info)

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self.keys)

    def __len__(self) -> int:
        return self.size

    def __str__(self) -> str:
        return f"KVBatchMeta(size={self.size}, field_names={self.fields}, extra_info={self.extra_info})"

    def _picked(self, rows: Sequence[int]) -> KVBatchMeta:
        keys, tags = [self.keys[row] for row in rows], [self.tags[row] for row in rows]
        return KVBatchMeta(keys, tags, self.partition_id, self.fields, self.extra_info)

    def select_keys(self, keys_to_select: Sequence[str]) -> KVBatchMeta:
        """Returns the samples with these keys, in their order.

        Raises:
            ValueError: a key is named twice.
            RuntimeError: no sample has a key.
        """
        if len(set(keys_to_select)) != len(keys_to_select):
            raise ValueError("Contain duplicate keys: each may be named once")
        rows = {key: row for row, key in enumerate(self.keys)}
        unknown = sorted(set(keys_to_select) - set(rows))
        if unknown:
            raise RuntimeError(f"Keys {unknown} not found in current batch")
        return self._picked([rows[key] for key in keys_to_select])

    def reorder(self, indexes: Sequence[int]) -> None:
        """Puts the samples into this order: sample `indexes[i]` becomes sample `i`.

        Raises:
            ValueError: `indexes` does not have each position of the batch once.
        """
        if len(indexes) != self.size:
            raise ValueError(f"length {len(indexes)} of the order does not match the batch size {self.size}")
        if len(set(indexes)) != len(indexes):
            raise ValueError("Contain duplicate indexes: each may be named once")
        if sorted(indexes) != list(range(self.size)):
            raise ValueError(f"expected places in range [0, {self.size}), found {list(indexes)}")
        self.keys = [self.keys[row] for row in indexes]
        self.tags = [self.tags[row] for row in indexes]

    def chunk(self, chunks: int) -> list[KVBatchMeta]:
        """Splits the batch into `chunks` parts of about equal size, the larger ones first."""
        return [self._picked(rows) for rows in chunked(self.size, chunks)]

    @classmethod
    def concat(cls, data: Sequence[KVBatchMeta]) -> KVBatchMeta:
        """Joins batches of one partition.

        Raises:
            ValueError: the fields, the partitions or the notes of the batches differ.
        """
        parts = [part for part in data if part]
        if not parts:
            return cls()
        for part in parts:
            if set(part.fields or ()) != set(parts[0].fields or ()):
                raise ValueError(f"Field names do not match: found {parts[0].fields} and {part.fields}")
            if part.partition_id != parts[0].partition_id:
                raise ValueError(
                    f"Partition do not match: found {parts[0].partition_id} and {part.partition_id}"
                )
        return cls(
            [key for part in parts for key in part.keys],
            [tags for part in parts for tags in part.tags],
            parts[0].partition_id,
            parts[0].fields,
            joined_info([part.extra_info or {} for part in parts]) or None,
        )
