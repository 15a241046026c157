"""The base of the client: its connections, metadata of samples, and data by metadata."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import torch
from tensordict import TensorDict

from rolldock.transfer_queue.fields import fields_of, values_of
from rolldock.transfer_queue.link import Link
from rolldock.transfer_queue.metadata import BatchMeta
from rolldock.transfer_queue.server import connected, stored_place
from rolldock.transfer_queue.store import Store

P = ParamSpec("P")
T = TypeVar("T")

#: Changes values in place before they are stored.
Parser = Callable[[dict[str, Any]], Any]

#: The longest time that `get_meta` waits for samples without `polling_mode`, in seconds.
META_WAIT_S = float(os.environ.get("TQ_CONTROLLER_GET_METADATA_TIMEOUT", "5"))
#: The longest time that a call holds its connection to the controller while it waits, in seconds.
_TURN_S = 1.0
#: The maximum number of concurrent asyncio calls of one client.
_CALLS_MAX = 256


class ClientCore:
    """Metadata and data of samples; see `TransferQueueClient`.

    Args:
        client_id: a name for messages.
        config: the configuration that `init` returned.

    Raises:
        RuntimeError: `init` was not called with the configuration's queue.
    """

    def __init__(self, client_id: str, config: Any) -> None:
        self.client_id = client_id
        self._config = config
        self._queue = connected(config.rolldock)
        place = stored_place(self._queue)
        if place is None:
            raise RuntimeError(f"the queue at {config.rolldock.url} has no controller; call init() first")
        self._link = Link(place)
        self._store = Store(self._queue)
        self._polls = bool(config.controller.polling_mode)
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def close(self) -> None:
        """Closes the connections of this client. The queue stays as it is."""
        if self._threads is not None and self._threads[0] == os.getpid():
            self._threads[1].shutdown(wait=False)
        self._threads = None
        self._link.close()
        self._queue.close()

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Makes a call in a thread, so that it does not block the event loop. A cancelled call still takes
        effect."""
        pid = os.getpid()
        if self._threads is None or self._threads[0] != pid:
            # The threads of a process do not exist in a process that is forked from it.
            self._threads = (pid, ThreadPoolExecutor(_CALLS_MAX, "transfer-queue"))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads[1], lambda: call(*args, **kwargs))

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._link.call(name, *arguments)

    # Metadata

    def _tried_meta(
        self,
        data_fields: Sequence[str] | None,
        batch_size: int,
        partition_id: str,
        mode: str,
        task_name: str | None,
        sampling_config: Mapping[str, Any] | None,
    ) -> tuple[BatchMeta, int, int | None]:
        """Asks once. Returns the batch, the number of ready samples, and the revision if waiting may help."""
        if mode == "force_fetch":
            return self._call("force_fetch", partition_id, data_fields), batch_size, None
        if data_fields is None:
            raise ValueError(f"expected data_fields in mode {mode}, found None")
        if mode == "insert":
            return self._call("insert", partition_id, list(data_fields), batch_size), batch_size, None
        if mode != "fetch":
            raise ValueError(f"expected mode fetch, force_fetch or insert, found {mode!r}")
        if task_name is None:
            raise ValueError("expected a task_name in mode fetch, found None")
        asked = (partition_id, list(data_fields), batch_size, task_name, sampling_config)
        meta, ready, revision = self._call("fetch", *asked)
        return meta, ready, None if meta or self._polls else revision

    def _late(self, batch_size: int, ready: int, task_name: str | None) -> RuntimeError:
        return RuntimeError(
            f"get_meta waited {META_WAIT_S} s: task={task_name} asked for samples={batch_size}, "
            f"and ready={ready}; with polling_mode the batch is empty instead"
        )

    def get_meta(
        self,
        data_fields: Sequence[str] | None,
        batch_size: int,
        partition_id: str,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: Mapping[str, Any] | None = None,
    ) -> BatchMeta:
        """Returns the metadata of a batch of samples.

        Args:
            data_fields: the fields that the samples must have. `"force_fetch"` accepts `None` for all.
            batch_size: the number of samples.
            partition_id: the partition.
            mode: `"fetch"` chooses samples that are ready and consumes them for the task. `"force_fetch"`
                returns all samples of the partition, ready or not, and consumes nothing. `"insert"` makes
                samples without data.
            task_name: the task that consumes the samples.
            sampling_config: arguments for the sampler.

        Returns:
            The batch. With `polling_mode` it is empty if too few samples are ready.

        Raises:
            RuntimeError: too few samples were ready in time (`TQ_CONTROLLER_GET_METADATA_TIMEOUT`, 5 s).
            ValueError: an argument is not valid.
        """
        asked = (data_fields, batch_size, partition_id, mode, task_name, sampling_config)
        deadline = time.monotonic() + META_WAIT_S
        while True:
            meta, ready, revision = self._tried_meta(*asked)
            if revision is None:
                return meta
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late(batch_size, ready, task_name)
            self._call("wait", revision, min(left, _TURN_S))

    async def async_get_meta(
        self,
        data_fields: Sequence[str] | None,
        batch_size: int,
        partition_id: str,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: Mapping[str, Any] | None = None,
    ) -> BatchMeta:
        """As `get_meta`. A call that is cancelled while it waits consumes nothing."""
        asked = (data_fields, batch_size, partition_id, mode, task_name, sampling_config)
        deadline = time.monotonic() + META_WAIT_S
        while True:
            meta, ready, revision = await self.run(self._tried_meta, *asked)
            if revision is None:
                return meta
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late(batch_size, ready, task_name)
            await self.run(self._call, "wait", revision, min(left, _TURN_S))

    def set_custom_meta(self, metadata: BatchMeta) -> None:
        """Replaces the notes of samples by the notes in the batch."""
        for part in metadata.chunk_by_partition():
            self._call("note", part.partition_ids[0], part.global_indexes, part.custom_meta, False)

    async def async_set_custom_meta(self, metadata: BatchMeta) -> None:
        """As `set_custom_meta`."""
        await self.run(self.set_custom_meta, metadata)

    # Data

    def put(
        self,
        data: TensorDict,
        metadata: BatchMeta | None = None,
        partition_id: str | None = None,
        data_parser: Parser | None = None,
    ) -> BatchMeta:
        """Writes fields of samples. Fields that the samples already have are replaced.

        Args:
            data: the fields: tensors of shape `(samples, ...)`, nested tensors, or objects.
            metadata: the samples; new samples by default. Each sample gets the notes of this metadata, too.
            partition_id: the partition of new samples.
            data_parser: gets the values of the fields (tensors, or lists of values), and may replace them.

        Returns:
            The metadata, with the fields that were written.

        Raises:
            ValueError: there are no samples, there is no partition, or a field has another type than in other
                samples.
            StorageKeyNotFoundError: a sample was cleared.
        """
        values = values_of(data)
        if data_parser is not None:
            names = list(values)
            data_parser(values)
            if list(values) != names:
                raise ValueError(f"expected the fields {names} after data_parser, found {list(values)}")
        samples = data.batch_size[0]
        fields = fields_of(values, samples)
        if metadata is not None and metadata.size == 0:
            raise ValueError("expected metadata of at least one sample, found none")
        if metadata is not None and metadata.size != samples:
            raise ValueError(f"expected data of samples={metadata.size}, found samples={samples}")
        if metadata is not None:
            return self._written(fields, metadata)
        if partition_id is None:
            raise ValueError("expected a partition_id or metadata, found neither")
        metadata = self._call("insert", partition_id, list(fields), samples)
        try:
            return self._written(fields, metadata)
        except BaseException:
            # No other client knows these samples, so they would stay without data.
            self.clear_samples(metadata)
            raise

    def _written(self, fields: Mapping[str, Any], metadata: BatchMeta) -> BatchMeta:
        schemas = {name: field.schema for name, field in fields.items()}
        parts = metadata.chunk_by_partition()
        if len(parts) > 1:
            raise ValueError(
                f"expected samples of one partition, found {sorted(set(metadata.partition_ids))}; use "
                "chunk_by_partition"
            )
        partition, indexes = metadata.partition_ids[0], metadata.global_indexes
        begun = self._call("begin_put", partition, indexes, schemas)
        rows = self._store.write(fields, indexes, begun, partition)
        ended = (partition, indexes, rows, schemas, metadata.custom_meta)
        self._store.clear(self._call("end_put", *ended))
        metadata.field_schema.update(schemas)
        metadata.production_status[:] = 1
        return metadata

    async def async_put(
        self,
        data: TensorDict,
        metadata: BatchMeta | None = None,
        partition_id: str | None = None,
        data_parser: Parser | None = None,
    ) -> BatchMeta:
        """As `put`."""
        return await self.run(self.put, data, metadata, partition_id, data_parser)

    def get_data(self, metadata: BatchMeta) -> TensorDict:
        """Reads the fields of a batch. The tensors are the caller's own.

        Returns:
            The fields: tensors of shape `(samples,)` for scalars, else nested tensors, and a `NonTensorStack`
            for objects. Without samples or fields it is empty.

        Raises:
            StorageKeyNotFoundError: a sample does not have a field, or was cleared.
        """
        if metadata.size == 0 or not metadata.field_names:
            return TensorDict({}, batch_size=0)
        rows = [0] * metadata.size
        fields: dict[str, tuple[torch.dtype | None, list[Any]]] = {}
        places: dict[str, list[int]] = {}
        for place, partition in enumerate(metadata.partition_ids):
            places.setdefault(partition, []).append(place)
        for partition, of_one in places.items():
            part = metadata.select_samples(of_one)
            handles, found = self._call("locate", partition, part.global_indexes, part.field_names)
            for place, handle in zip(of_one, handles, strict=True):
                rows[place] = handle
            for name, (dtype, shapes) in found.items():
                known, every = fields.setdefault(name, (dtype, [None] * metadata.size))
                if known != dtype:
                    raise ValueError(f"dtype mismatch of field={name}: found {known} and {dtype}")
                for place, shape in zip(of_one, shapes, strict=True):
                    every[place] = shape
        return self._store.read(rows, fields)

    async def async_get_data(self, metadata: BatchMeta) -> TensorDict:
        """As `get_data`."""
        return await self.run(self.get_data, metadata)

    def clear_samples(self, metadata: BatchMeta) -> None:
        """Removes samples. Samples that were cleared before are left out."""
        for part in metadata.chunk_by_partition():
            self._store.clear(self._call("clear", part.partition_ids[0], part.global_indexes))

    async def async_clear_samples(self, metadata: BatchMeta) -> None:
        """As `clear_samples`."""
        await self.run(self.clear_samples, metadata)

    def clear_partition(self, partition_id: str) -> None:
        """Removes a partition. Nothing happens if there is none."""
        self._store.clear(self._call("clear_partition", partition_id))

    async def async_clear_partition(self, partition_id: str) -> None:
        """As `clear_partition`."""
        await self.run(self.clear_partition, partition_id)
