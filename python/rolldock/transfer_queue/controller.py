"""The controller, which knows which samples exist, which fields they have, and which tasks have consumed
them.

The controller is in the process that called `init`, and answers one call at a time. Data never pass through
it. An index always names the same sample: indexes of cleared samples are not used again.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rolldock.transfer_queue.errors import StorageKeyNotFoundError
from rolldock.transfer_queue.fields import Schema
from rolldock.transfer_queue.metadata import BatchMeta
from rolldock.transfer_queue.partition import PartitionState
from rolldock.transfer_queue.sampler import IN_ORDER, BaseSampler

#: The version of the state that `save` returns.
_STATE_VERSION = 1


class Controller:
    """The state of all partitions. Its public methods are the calls of clients.

    Args:
        sampler: what chooses the samples of batches.
        config: the configuration that other processes get.
        reserve: the number of indexes that a partition gets when it is created.
    """

    def __init__(self, sampler: BaseSampler, config: Any, reserve: int) -> None:
        self._sampler = sampler
        self._config = config
        self._reserve = reserve
        self._partitions: dict[str, PartitionState] = {}
        #: The next index.
        self._indexes = 0
        self._revision = 0
        self._changed = threading.Condition()

    def __enter__(self) -> Controller:
        """Begins a call: calls happen one after the other."""
        self._changed.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._changed.release()

    def config(self) -> Any:
        """Returns the configuration."""
        return self._config

    def wait(self, revision: int, wait_s: float) -> None:
        """Waits until the samples have changed after a revision, at most `wait_s` seconds."""
        self._changed.wait_for(lambda: self._revision != revision, wait_s)

    def _notify(self) -> None:
        self._revision += 1
        self._changed.notify_all()

    def _allocate(self, count: int) -> list[int]:
        first = self._indexes
        self._indexes += count
        return list(range(first, self._indexes))

    def _existing(self, partition_id: str) -> PartitionState:
        """Returns a partition, or a partition without samples if it does not exist."""
        return self._partitions.get(partition_id) or PartitionState()

    def _created(self, partition_id: str) -> PartitionState:
        partition = self._partitions.get(partition_id)
        if partition is None:
            partition = self._partitions[partition_id] = PartitionState()
            partition.spare = self._allocate(self._reserve)
        return partition

    def _add(self, partition: PartitionState, keys: Sequence[str | None]) -> list[int]:
        indexes = partition.spare[: len(keys)]
        del partition.spare[: len(keys)]
        indexes += self._allocate(len(keys) - len(indexes))
        for index, key in zip(indexes, keys, strict=True):
            partition.add(index, key)
        return indexes

    def insert(self, partition_id: str, fields: Sequence[str], batch_size: int) -> BatchMeta:
        """Adds samples without data.

        Raises:
            ValueError: the number of samples is not positive.
        """
        if batch_size < 1:
            raise ValueError(f"expected a positive batch_size, found {batch_size}")
        partition = self._created(partition_id)
        indexes = self._add(partition, [None] * batch_size)
        meta = self._meta(partition_id, indexes, fields)
        for name in fields:
            unknown = {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": False}
            meta.field_schema.setdefault(name, unknown)
        meta.production_status[:] = 0
        return meta

    def fetch(
        self,
        partition_id: str,
        fields: Sequence[str],
        batch_size: int,
        task: str,
        sampling: Mapping[str, Any] | None,
    ) -> tuple[BatchMeta, int, int]:
        """Chooses samples for a task and consumes them.

        Returns:
            The batch, which is empty if too few are ready; the number of ready samples; and the revision.

        Raises:
            ValueError: the number of samples is negative.
        """
        if batch_size < 0:
            raise ValueError(f"expected a batch_size of at least 0, found {batch_size}")
        partition = self._partitions.get(partition_id)
        ready: Sequence[int] = partition.ready(fields, task) if partition else []
        is_repeated = self._sampler.has_cached_result(partition_id, task, sampling)
        if partition is None or (len(ready) < batch_size and not is_repeated):
            return BatchMeta.empty(), len(ready), self._revision
        named = {"task_name": task, "partition_id": partition_id, "partition": partition}
        size = len(ready)
        # Any other sampler may change its list, so it gets a copy.
        given = ready if type(self._sampler).sample in IN_ORDER else list(ready)
        sampled, consumed = self._sampler(given, batch_size, **{**named, **(sampling or {})})
        partition.consume(task, consumed)
        kept = [index for index in sampled if index in partition.samples]
        return self._meta(partition_id, kept, fields), size, self._revision

    def force_fetch(self, partition_id: str, fields: Sequence[str] | None) -> BatchMeta:
        """Returns all samples of a partition, ready or not, consumed or not. Consumes nothing."""
        partition = self._partitions.get(partition_id)
        if partition is None:
            return BatchMeta.empty()
        names = list(partition.fields) if fields is None else fields
        return self._meta(partition_id, sorted(partition.samples), names)

    def _meta(self, partition_id: str, indexes: Sequence[int], fields: Sequence[str]) -> BatchMeta:
        partition = self._partitions[partition_id]
        known = {name: partition.fields[name] for name in fields if name in partition.fields}
        samples = [partition.samples[index] for index in indexes]
        is_ready = [bool(fields) and partition.has(index, fields) for index in indexes]
        return BatchMeta(
            indexes,
            [partition_id] * len(samples),
            {name: state.schema(indexes) for name, state in known.items()},
            np.array(is_ready, np.int8),
            None,
            [sample.meta for sample in samples],
        )

    def begin_put(
        self, partition_id: str, indexes: Sequence[int], schemas: Mapping[str, Schema]
    ) -> list[int | None]:
        """Checks a put. Returns the handle of each sample's row; `None` for samples without data.

        Raises:
            StorageKeyNotFoundError: a sample was cleared.
            ValueError: a field has another type than in other samples.
        """
        partition = self._existing(partition_id)
        samples = partition.existing(indexes)
        partition.check_types(schemas)
        return [sample.row for sample in samples]

    def end_put(
        self,
        partition_id: str,
        indexes: Sequence[int],
        rows: Sequence[int],
        schemas: Mapping[str, Schema],
        metas: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        """Records the fields that a put has written, and adds notes to the samples. Samples that were cleared
        during the put are left out.

        Returns:
            The handles of rows that belong to no sample.

        Raises:
            ValueError: another put has given a field another type meanwhile. Then only the handles are
                recorded.
        """
        partition = self._existing(partition_id)
        kept = [place for place, index in enumerate(indexes) if index in partition.samples]
        for place in kept:
            partition.samples[indexes[place]].row = rows[place]
        partition.check_types(schemas)
        for place in kept:
            partition.samples[indexes[place]].note(metas[place])
        picked = {name: _picked(schema, kept) for name, schema in schemas.items()}
        partition.produced([indexes[place] for place in kept], picked)
        self._notify()
        return [row for index, row in zip(indexes, rows, strict=True) if index not in partition.samples]

    def locate(
        self, partition_id: str, indexes: Sequence[int], fields: Sequence[str]
    ) -> tuple[list[int], dict[str, tuple[torch.dtype | None, list[Any]]]]:
        """Returns the handle of each sample, and for each field its type and the shape of each sample.

        Raises:
            StorageKeyNotFoundError: a sample was cleared, or does not have a field.
        """
        partition = self._existing(partition_id)
        samples = partition.existing(indexes)
        for name in fields:
            having = partition.fields[name].shapes if name in partition.fields else {}
            lacking = [index for index in indexes if index not in having]
            if lacking:
                raise StorageKeyNotFoundError(f"samples {lacking} do not have field={name} yet")
        states = {name: partition.fields[name] for name in fields}
        shapes = {name: (one.dtype, [one.shapes[index] for index in indexes]) for name, one in states.items()}
        return [sample.row for sample in samples if sample.row is not None], shapes

    def note(
        self,
        partition_id: str,
        indexes: Sequence[int],
        metas: Sequence[Mapping[str, Any]],
        is_added: bool,
    ) -> None:
        """Replaces the notes of samples, or adds to them. Samples that were cleared are left out."""
        partition = self._existing(partition_id)
        for index, meta in zip(indexes, metas, strict=True):
            sample = partition.samples.get(index)
            if sample is None:
                continue
            if not is_added:
                sample.meta = {}
            sample.note(meta)
        self._notify()

    def clear(self, partition_id: str, indexes: Sequence[int]) -> list[int]:
        """Removes samples. Returns the handles of their rows. Samples that do not exist are left out."""
        partition = self._existing(partition_id)
        rows = [partition.remove(index) for index in dict.fromkeys(indexes) if index in partition.samples]
        self._notify()
        return [row for row in rows if row is not None]

    def clear_partition(self, partition_id: str) -> list[int]:
        """Removes a partition. Returns the handles of its rows."""
        partition = self._partitions.pop(partition_id, None)
        self._sampler.clear_cache(partition_id)
        if partition is None:
            return []
        self._notify()
        return [sample.row for sample in partition.samples.values() if sample.row is not None]

    def partition_list(self) -> list[str]:
        """Returns the names of the partitions, in the order of their creation."""
        return list(self._partitions)

    def consumption(self, partition_id: str, task: str) -> tuple[list[int], list[int]] | None:
        """Returns the indexes of a partition, and for each index whether a task has consumed the sample;
        `None` if there is no such partition."""
        partition = self._partitions.get(partition_id)
        if partition is None:
            return None
        consumed, places = partition.consumed.get(task, set()), partition.places()
        return places, [int(index in consumed) for index in places]

    def production(
        self, partition_id: str, fields: Sequence[str]
    ) -> tuple[list[int], list[list[int]]] | None:
        """Returns the indexes of a partition, and for each index which of the fields the sample has; `None`
        if there is a field that no sample has."""
        partition = self._partitions.get(partition_id)
        if partition is None or not fields or any(name not in partition.fields for name in fields):
            return None
        places = partition.places()
        return places, [[int(partition.has(index, [name])) for name in fields] for index in places]

    def has_consumed_all(self, partition_id: str, task: str) -> bool:
        """Whether a partition has samples, and a task has consumed all of them."""
        return self._existing(partition_id).has_consumed_all(task)

    def has_all(self, partition_id: str, fields: Sequence[str]) -> bool:
        """Whether a partition has samples, and all of them have the fields."""
        return self._existing(partition_id).has_all(fields)

    def reset(self, partition_id: str, task: str | None) -> bool:
        """Makes the samples of a partition ready again, for one task or for all. Returns whether there is
        such a partition."""
        partition = self._partitions.get(partition_id)
        if partition is None:
            return False
        partition.reset(task)
        self._notify()
        return True

    def find(
        self, partition_id: str, keys: Sequence[str], create: bool
    ) -> tuple[BatchMeta, list[str], list[int]]:
        """Finds samples by their keys.

        Returns:
            The samples that exist, with the fields that all of them have; the keys that were not found;
            and the indexes of samples that were created.
        """
        partition = self._created(partition_id) if create else self._partitions.get(partition_id)
        if partition is None:
            return BatchMeta.empty(), list(keys), []
        unknown = [key for key in dict.fromkeys(keys) if key not in partition.keys]
        created = self._add(partition, unknown) if create else []
        indexes = [partition.keys[key] for key in keys if key in partition.keys]
        fields = partition.common_fields(indexes) if indexes else []
        return self._meta(partition_id, indexes, fields), unknown, created

    def keys_of(self, partition_id: str, indexes: Sequence[int]) -> list[str | None]:
        """Returns the key of each sample; `None` for samples without a key, and for samples that do not
        exist."""
        partition = self._existing(partition_id)
        return [partition.samples[index].key if index in partition.samples else None for index in indexes]

    def key_tags(self, partition_id: str | None) -> dict[str, dict[str, dict[str, Any]]]:
        """Returns the notes of each key, for one partition or for all."""
        names = list(self._partitions) if partition_id is None else [partition_id]
        found = {name: self._partitions[name] for name in names if name in self._partitions}
        return {
            name: {key: partition.samples[index].meta for key, index in partition.keys.items()}
            for name, partition in found.items()
        }

    def save(self) -> bytes:
        """Returns the state of all partitions and of the sampler, pickled."""
        state = {
            "version": _STATE_VERSION,
            "partitions": self._partitions,
            "indexes": self._indexes,
            "sampler_name": type(self._sampler).__name__,
            "sampler": self._sampler.save_checkpoint(),
        }
        return pickle.dumps(state)

    def check(self, saved: bytes) -> None:
        """Checks a state before `load` sets it.

        Raises:
            ValueError: `save` did not return it, or it is of another version or sampler.
        """
        self._read(saved)

    def _read(self, saved: bytes) -> dict[str, Any]:
        try:
            state = pickle.loads(saved)
        except Exception as error:
            raise ValueError(
                f"expected a controller's state, found bytes={len(saved)} that are none: {error}"
            ) from error
        found = state.get("version") if isinstance(state, dict) else None
        if found != _STATE_VERSION:
            raise ValueError(f"expected a controller's state of version={_STATE_VERSION}, found {found}")
        name = type(self._sampler).__name__
        if state["sampler_name"] != name:
            raise ValueError(
                f"expected a controller's state of sampler={name}, found {state['sampler_name']}"
            )
        read: dict[str, Any] = state
        return read

    def load(self, saved: bytes) -> None:
        """Sets the state that `save` returned.

        Raises:
            ValueError: as `check`. Then nothing has changed.
        """
        state = self._read(saved)
        self._sampler.load_checkpoint(state["sampler"])
        self._partitions = state["partitions"]
        # Metadata of samples that were removed must not name later samples.
        self._indexes = max(self._indexes, state["indexes"])
        self._notify()


def _picked(schema: Schema, places: Sequence[int]) -> Schema:
    if schema.get("per_sample_shapes") is None:
        return schema
    return {**schema, "per_sample_shapes": [schema["per_sample_shapes"][place] for place in places]}
