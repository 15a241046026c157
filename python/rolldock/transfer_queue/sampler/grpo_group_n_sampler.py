"""Whole groups of samples."""

from __future__ import annotations

from typing import Any

from rolldock.transfer_queue.sampler.base import BaseSampler


class GRPOGroupNSampler(BaseSampler):
    """Chooses groups of samples that are all ready. A group is a run of consecutive indexes.

    Args:
        n_samples_per_prompt: the number of samples of a group.

    Raises:
        ValueError: the number is not positive.
    """

    def __init__(self, n_samples_per_prompt: int = 1) -> None:
        super().__init__()
        if n_samples_per_prompt <= 0:
            raise ValueError(f"n_samples_per_prompt must be positive, got {n_samples_per_prompt}")
        self.n_samples_per_prompt = n_samples_per_prompt

    def sample(
        self,
        ready_indexes: list[int],
        batch_size: int,
        task_name: str = "",
        partition_id: str = "",
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[int], list[int]]:
        """Chooses whole groups, those with the smallest indexes first.

        Args:
            ready_indexes: the samples that are ready.
            batch_size: the number of samples, a multiple of the group's.
            task_name: the task.
            partition_id: the partition.
            *args: ignored.
            **kwargs: `dp_rank` and `batch_index`: a rank that asks again for a batch gets the same one.

        Returns:
            The samples, twice; none where there are too few whole groups.

        Raises:
            ValueError: the batch is not a multiple of the group.
        """
        rank, batch = kwargs.get("dp_rank"), kwargs.get("batch_index")
        if rank is not None:
            chosen_before = self._states.get(partition_id, {}).get(task_name, {}).get(rank, {})
            if batch in chosen_before:
                sampled, consumed = chosen_before[batch]
                return list(sampled), list(consumed)
        chosen = self._groups(ready_indexes, batch_size)
        if chosen and rank is not None:
            self._rank_states(partition_id, task_name, rank)[batch] = (chosen, list(chosen))
        return list(chosen), list(chosen)

    def _groups(self, ready_indexes: list[int], batch_size: int) -> list[int]:
        size = self.n_samples_per_prompt
        if batch_size % size != 0:
            raise ValueError(f"batch_size ({batch_size}) must be a multiple of n_samples_per_prompt ({size})")
        ordered = sorted(ready_indexes)
        chosen: list[int] = []
        start = 0
        while len(chosen) < batch_size and start + size <= len(ordered):
            if ordered[start + size - 1] - ordered[start] == size - 1:
                chosen += ordered[start : start + size]
                start += size
            else:
                start += 1
        return chosen if len(chosen) == batch_size else []
