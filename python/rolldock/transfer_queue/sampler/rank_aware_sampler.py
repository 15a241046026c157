"""A sampler for data-parallel ranks that consist of several processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolldock.transfer_queue.sampler.base import BaseSampler


class RankAwareSampler(BaseSampler):
    """Gives all processes of a data-parallel rank the same batches, and different ranks different samples."""

    def sample(
        self,
        ready_indexes: Sequence[int],
        batch_size: int,
        dp_rank: int,
        batch_index: int,
        task_name: str,
        partition_id: str,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[int], list[int]]:
        """Chooses the samples of a batch. A repeated call for a batch returns the earlier choice.

        Args:
            ready_indexes: the indexes of the ready samples.
            batch_size: the number of samples of the batch.
            dp_rank: the number of the rank, from 0.
            batch_index: the number of the batch, counted for each rank.
            task_name: the task.
            partition_id: the partition.
            *args: ignored.
            **kwargs: ignored.

        Returns:
            The chosen indexes and the consumed indexes, which are equal. Both are empty if the batch
            has not been chosen before and fewer than `batch_size` samples are ready.

        Raises:
            ValueError: `dp_rank` is negative.
        """
        if dp_rank < 0:
            raise ValueError(f"dp_rank {dp_rank} must be greater than or equal to 0")
        batches = self._rank_states(partition_id, task_name, dp_rank)
        if batch_index not in batches:
            if len(ready_indexes) < batch_size:
                return [], []
            batches[batch_index] = list(ready_indexes[:batch_size])
        chosen: list[int] = batches[batch_index]
        return list(chosen), list(chosen)
