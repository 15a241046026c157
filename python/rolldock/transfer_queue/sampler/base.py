"""The base of samplers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class BaseSampler(ABC):
    """Chooses the samples of a batch among the ready samples.

    A sampler is an object of the controller, in the process that called `init`. Its calls happen one after
    the other.

    A sampler may keep the samples that it chose for a rank in
    `_states[partition_id][task_name][dp_rank][batch_index]`, so that other members of the rank get the same
    samples.
    """

    def __init__(self) -> None:
        self._states: dict[Any, Any] = {}

    @abstractmethod
    def sample(
        self, ready_indexes: list[int], batch_size: int, *args: Any, **kwargs: Any
    ) -> tuple[list[int], list[int]]:
        """Chooses samples.

        Args:
            ready_indexes: the indexes of the samples that have the fields and that the task has not consumed,
                in ascending order. A sampler of your own gets all of them as a list at each call. Making
                this list takes time in proportion to its length.
            batch_size: the number of samples that the task asked for.
            *args: none are given.
            **kwargs: `task_name`, `partition_id`, `partition` (an object with `get_custom_meta(indexes)`),
                and the `sampling_config` of the call.

        Returns:
            The indexes of the batch, and the indexes that the task consumes. The batch is empty if there are
            too few samples.
        """

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[list[int], list[int]]:
        """As `sample`."""
        return self.sample(*args, **kwargs)

    def has_cached_result(
        self, partition_id: str, task_name: str, sampling_config: Mapping[str, Any] | None = None
    ) -> bool:
        """Whether samples were chosen for this `dp_rank` and `batch_index` before."""
        config = sampling_config or {}
        rank = config.get("dp_rank")
        if rank is None:
            return False
        ranks = self._states.get(partition_id, {}).get(task_name, {})
        return config.get("batch_index") in ranks.get(rank, {})

    def clear_cache(self, partition_id: str) -> None:
        """Forgets what was chosen in a partition."""
        self._states.pop(partition_id, None)

    def save_checkpoint(self) -> dict[str, Any]:
        """Returns the state, for `load_checkpoint`."""
        return {"_states": self._states}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        """Sets the state that `save_checkpoint` returned."""
        self._states = state["_states"]

    def _rank_states(self, partition_id: str, task_name: str, dp_rank: Any) -> dict[Any, Any]:
        tasks = self._states.setdefault(partition_id, {})
        ranks: dict[Any, dict[Any, Any]] = tasks.setdefault(task_name, {})
        return ranks.setdefault(dp_rank, {})
