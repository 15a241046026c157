"""Batches of a partition as they become ready."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch.utils.data import IterableDataset

from rolldock.transfer_queue.client import TransferQueueClient
from rolldock.transfer_queue.metadata import BatchMeta

#: The time between two attempts while too few samples are ready, in seconds.
_PAUSE_S = float(os.environ.get("TQ_STREAMING_DATASET_EMPTY_BATCH_SLEEP_INTERVAL", "1"))

#: The data of a batch, and its metadata.
Pair = tuple[TensorDict, BatchMeta]


class StreamingDataset(IterableDataset[Pair]):
    """Micro-batches of a task, for one data-parallel rank. Members of a rank get the same samples with a
    `RankAwareSampler` and `polling_mode`.

    Args:
        config: the configuration that `init` returned.
        batch_size: the number of samples of a batch.
        micro_batch_size: the most samples of a micro-batch.
        data_fields: the fields that the samples must have.
        partition_id: the partition.
        task_name: the task that consumes the samples.
        dp_rank: the number of the rank, from 0.
        should_check_consumption_status: whether the iteration ends when the task has consumed all samples. By
            default the iteration does not end.
        fetch_batch_fn: the function that gets a batch; `default_fetch_batch_fn` by default.
        process_batch_fn: the function that splits a batch; `chunk_batch_fn` by default.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        config: Any,
        batch_size: int,
        micro_batch_size: int,
        data_fields: Sequence[str],
        partition_id: str,
        task_name: str,
        dp_rank: int,
        should_check_consumption_status: bool = False,
        fetch_batch_fn: Callable[..., tuple[TensorDict | None, BatchMeta]] | None = None,
        process_batch_fn: Callable[..., Sequence[Pair]] | None = None,
    ) -> None:
        super().__init__()
        if micro_batch_size < 1:
            raise ValueError(f"micro_batch_size must be >= 1, got {micro_batch_size}")
        if not data_fields:
            raise ValueError("data_fields must be a list with at least one field name, got none")
        if dp_rank < 0:
            raise ValueError(f"dp_rank {dp_rank} must be greater than or equal to 0")
        self.config = config
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.data_fields = list(data_fields)
        self.partition_id = partition_id
        self.task_name = task_name
        self.dp_rank = dp_rank
        self.should_check_consumption_status = should_check_consumption_status
        self.fetch_batch_fn = fetch_batch_fn or default_fetch_batch_fn
        self.process_batch_fn = process_batch_fn or chunk_batch_fn
        self.sampling_config = {"dp_rank": dp_rank, "task_name": task_name}
        #: The batches of the partition that were read, for another iteration over them.
        self.buffer: list[Pair] = []
        #: The number of the next batch.
        self.batch_index = 0
        self._client: TransferQueueClient | None = None

    def _has_ended(self, client: TransferQueueClient) -> bool:
        if not self.should_check_consumption_status or self.batch_index < len(self.buffer):
            return False
        return client.check_consumption_status(self.task_name, self.partition_id)

    def __iter__(self) -> Iterator[Pair]:
        """Yields micro-batches: first of the batches that were read before, then of new batches."""
        if self._client is None:
            self._client = TransferQueueClient(f"StreamingDataset_{uuid.uuid4().hex[:8]}", self.config)
        client = self._client
        while not self._has_ended(client):
            if self.batch_index == len(self.buffer):
                batch, meta = self.fetch_batch_fn(
                    tq_client=client,
                    data_fields=self.data_fields,
                    batch_size=self.batch_size,
                    partition_id=self.partition_id,
                    task_name=self.task_name,
                    sampling_config=self.sampling_config,
                    batch_index=self.batch_index,
                )
                if batch is None:
                    time.sleep(_PAUSE_S)
                    continue
                self.buffer.append((batch, meta))
            batch, meta = self.buffer[self.batch_index]
            self.batch_index += 1
            yield from self.process_batch_fn(batch, meta, micro_batch_size=self.micro_batch_size)

    def reset(self) -> None:
        """Begins again with the batches that were read."""
        self.batch_index = 0

    def step(self, partition_id: str) -> None:
        """Continues with another partition."""
        self.buffer = []
        self.batch_index = 0
        self.partition_id = partition_id


def default_fetch_batch_fn(
    tq_client: TransferQueueClient,
    data_fields: Sequence[str],
    batch_size: int,
    partition_id: str,
    task_name: str,
    sampling_config: Mapping[str, Any],
    batch_index: int,
) -> tuple[TensorDict | None, BatchMeta]:
    """Gets a batch of a task, and consumes it. Returns no data if too few samples are ready."""
    config = {**sampling_config, "batch_index": batch_index, "partition_id": partition_id}
    meta = tq_client.get_meta(
        data_fields=data_fields,
        batch_size=batch_size,
        partition_id=partition_id,
        task_name=task_name,
        sampling_config=config,
    )
    return (tq_client.get_data(meta) if meta else None), meta


def chunk_batch_fn(td: TensorDict, batch_meta: BatchMeta, micro_batch_size: int = 1) -> list[Pair]:
    """Splits a batch into micro-batches. All have `micro_batch_size` samples but the last.

    Raises:
        TypeError: the data are not a TensorDict.
        ValueError: the size is not positive, or greater than the batch.
    """
    if not isinstance(td, TensorDict):
        raise TypeError(f"Expected TensorDict, got {type(td).__name__}")
    if not isinstance(micro_batch_size, int) or micro_batch_size <= 0:
        raise ValueError(f"micro_batch_size must be a positive integer, got {micro_batch_size}")
    if len(td.batch_size) == 0:
        raise ValueError("Input TensorDict must have non-empty batch_size")
    samples = td.batch_size[0]
    if micro_batch_size > samples:
        raise ValueError(f"micro_batch_size ({micro_batch_size}) exceeds total batch size ({samples})")
    ends = range(micro_batch_size, samples + micro_batch_size, micro_batch_size)
    places = [range(end - micro_batch_size, min(end, samples)) for end in ends]
    return [(_rows(td, rows), batch_meta.select_samples(rows)) for rows in places]


def _rows(td: TensorDict, rows: range) -> TensorDict:
    picked: dict[str, Any] = {}
    for name in td.keys():  # noqa: SIM118 (a TensorDict iterates over its rows)
        value = td.get(name)
        if isinstance(value, torch.Tensor) and value.is_nested:
            picked[name] = torch.nested.as_nested_tensor(
                list(value.unbind()[rows.start : rows.stop]), layout=value.layout
            )
        else:
            picked[name] = value[rows.start : rows.stop]
    return TensorDict(picked, batch_size=len(rows))
