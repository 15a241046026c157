"""A sampler that chooses the samples with the smallest indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolldock.transfer_queue.sampler.base import BaseSampler


class SequentialSampler(BaseSampler):
    """Chooses the samples with the smallest indexes, and consumes them. The default."""

    def sample(
        self, ready_indexes: Sequence[int], batch_size: int, *args: Any, **kwargs: Any
    ) -> tuple[list[int], list[int]]:
        """Chooses the first `batch_size` of the samples, or all if there are fewer."""
        chosen = list(ready_indexes[:batch_size])
        return chosen, list(chosen)
