"""A sampler that chooses whole groups of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolldock.transfer_queue.ready import Indexes
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
        ready_indexes: Sequence[int],
        batch_size: int,
        task_name: str = "",
        partition_id: str = "",
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[int], list[int]]:
        """Chooses whole groups, those with the smallest indexes first.

        Args:
            ready_indexes: the samples that are ready.
            batch_size: the number of samples. The groups of a batch must fill it.
            task_name: the task.
            partition_id: the partition.
            *args: ignored.
            **kwargs: `dp_rank` and `batch_index`: a rank that asks again for a batch gets the same samples.

        Returns:
            The chosen indexes and the consumed indexes, which are equal. Both are empty if there are too few
            whole groups.

        Raises:
            ValueError: groups cannot fill the batch.
        """
        chosen = self._chosen(ready_indexes, batch_size, (partition_id, task_name), kwargs)
        return list(chosen), list(chosen)

    def _chosen(
        self, ready: Sequence[int], batch_size: int, place: tuple[str, str], options: Mapping[str, Any]
    ) -> list[int]:
        """Chooses the samples of a batch of a partition and task. If the batch was chosen before, returns the
        earlier choice."""
        rank, batch = options.get("dp_rank"), options.get("batch_index")
        if rank is None:
            return self._groups(ready, batch_size)
        batches = self._rank_states(*place, rank)
        if batch not in batches:
            chosen = self._groups(ready, batch_size)
            if not chosen:
                return []
            batches[batch] = (chosen, list(chosen))
        chosen_before: list[int] = batches[batch][0]
        return chosen_before

    def _groups(self, ready: Sequence[int], batch_size: int) -> list[int]:
        """Returns the first whole groups, or none if they do not fill the batch. Reads no index that it does
        not need."""
        size = self.n_samples_per_prompt
        if batch_size % size != 0:
            raise ValueError(f"batch_size ({batch_size}) must be a multiple of n_samples_per_prompt ({size})")
        chosen: list[int] = []
        group: list[int] = []
        for index in ready if isinstance(ready, Indexes) else sorted(ready):
            if group and index != group[-1] + 1:
                group = []
            group.append(index)
            if len(group) == size:
                chosen += group
                group = []
            if len(chosen) >= batch_size:
                return chosen[:batch_size]
        return []
