"""A loader of a `StreamingDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from rolldock.transfer_queue.dataloader.streaming_dataset import Pair, StreamingDataset


def _as_it_is(data: Pair) -> Pair:
    return data


class StreamingDataLoader(DataLoader[Pair]):
    """Loads the micro-batches of a `StreamingDataset`, in this process or in workers.

    Args:
        dataset: the dataset, which determines the sizes.
        num_workers: the number of worker processes; with 0, this process loads. Each worker has a dataset of
            its own: with a `RankAwareSampler`, the workers of a rank load the same batches.
        collate_fn: what is applied to each micro-batch; nothing by default.
        pin_memory: whether tensors are copied to pinned memory.
        worker_init_fn: what each worker calls first.
        multiprocessing_context: how workers are started.
        prefetch_factor: the number of micro-batches that each worker loads in advance.
        persistent_workers: whether the workers stay between iterations.
        pin_memory_device: the device of pinned memory.
    """

    dataset: StreamingDataset

    def __init__(
        self,
        dataset: StreamingDataset,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        super().__init__(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=collate_fn or _as_it_is,
            pin_memory=pin_memory,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )

    def reset(self) -> None:
        """As `StreamingDataset.reset`."""
        self.dataset.reset()

    def step(self, partition_id: str) -> None:
        """As `StreamingDataset.step`."""
        self.dataset.step(partition_id)

    def get_buffer(self) -> list[Pair]:
        """Returns the batches of the partition that were read."""
        return self.dataset.buffer
