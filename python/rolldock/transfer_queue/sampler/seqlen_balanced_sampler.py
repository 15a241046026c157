"""A sampler that gives each rank whole groups with about equally many tokens."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from rolldock.transfer_queue.sampler.grpo_group_n_sampler import GRPOGroupNSampler


class SeqlenBalancedSampler(GRPOGroupNSampler):
    """Chooses whole groups for all ranks at once, and gives each rank equally many groups with about equally
    many tokens. `total_lengths` in the `custom_meta` of a sample is its number of tokens; 1 by default. The
    `batch_size` of `sample` counts the samples of one rank. `dp_rank` and `batch_index` are 0 by default.

    Args:
        n_samples_per_prompt: the number of samples of a group.
        dp_size: the number of data-parallel ranks.

    Raises:
        ValueError: a number is not positive.
    """

    def __init__(self, n_samples_per_prompt: int = 1, dp_size: int = 1) -> None:
        super().__init__(n_samples_per_prompt)
        if dp_size <= 0:
            raise ValueError(f"dp_size must be positive, got {dp_size}")
        self.dp_size = dp_size
        self._balanced_cache: dict[tuple[str, str, Any], list[list[int]]] = {}

    def _chosen(
        self, ready: Sequence[int], batch_size: int, place: tuple[str, str], options: Mapping[str, Any]
    ) -> list[int]:
        rank, batch = options.get("dp_rank", 0), options.get("batch_index", 0)
        key = (*place, batch)
        shares = self._balanced_cache.get(key)
        if shares is None:
            chosen = self._groups(ready, batch_size * self.dp_size)
            if not chosen:
                return []
            shares = self._balanced_cache[key] = self._shares(chosen, options.get("partition"))
            for of_rank, share in enumerate(shares):
                self._rank_states(*place, of_rank)[batch] = (share, list(share))
        return shares[rank] if 0 <= rank < len(shares) else []

    def _shares(self, chosen: list[int], partition: Any) -> list[list[int]]:
        size = self.n_samples_per_prompt
        groups = [chosen[start : start + size] for start in range(0, len(chosen), size)]
        metas = {} if partition is None else partition.get_custom_meta(chosen)
        lengths = [sum(metas.get(one, {}).get("total_lengths", 1) for one in group) for group in groups]
        is_even = len(groups) % self.dp_size == 0
        if len(groups) < self.dp_size:
            return [*groups, *[[] for _ in range(self.dp_size - len(groups))]]
        parts = get_seqlen_balanced_partitions(lengths, self.dp_size, equal_size=is_even)
        return [[one for group in part for one in groups[group]] for part in parts]

    def clear_cache(self, partition_id: str) -> None:
        """As `BaseSampler.clear_cache`."""
        super().clear_cache(partition_id)
        self._balanced_cache = {
            place: shares for place, shares in self._balanced_cache.items() if place[0] != partition_id
        }

    def save_checkpoint(self) -> dict[str, Any]:
        """As `BaseSampler.save_checkpoint`."""
        return {**super().save_checkpoint(), "_balanced_cache": self._balanced_cache}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        """As `BaseSampler.load_checkpoint`."""
        super().load_checkpoint(state)
        self._balanced_cache = state["_balanced_cache"]


def get_seqlen_balanced_partitions(
    seqlen_list: Sequence[int], k_partitions: int, equal_size: bool
) -> list[list[int]]:
    """Splits items into parts with about equal sums, by the largest differencing method (Karmarkar-Karp).

    Args:
        seqlen_list: the length of each item, in tokens.
        k_partitions: the number of parts.
        equal_size: whether all parts get equally many items.

    Returns:
        The positions in `seqlen_list` of each part's items, in ascending order.

    Raises:
        AssertionError: there are fewer items than parts, or they cannot be split equally.
    """
    if len(seqlen_list) < k_partitions:
        raise AssertionError(f"expected at least {k_partitions} items, found {len(seqlen_list)}")
    if equal_size and len(seqlen_list) % k_partitions != 0:
        raise AssertionError(f"expected a multiple of {k_partitions} items, found {len(seqlen_list)}")
    ordered = sorted((length, place) for place, length in enumerate(seqlen_list))
    # A way to split some of the items: each part has its sum and its positions. The greatest sum is first.
    each = k_partitions if equal_size else 1
    splits: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for start in range(0, len(ordered), each):
        parts = [(length, [place]) for length, place in ordered[start : start + each]]
        parts += [(0, []) for _ in range(k_partitions - each)]
        _push(splits, start, parts)
    serial = len(ordered)
    while len(splits) > 1:
        # Merges the two splits with the greatest differences. The part with the greatest sum of one split
        # joins the part with the smallest sum of the other split.
        (_, _, one), (_, _, other) = heapq.heappop(splits), heapq.heappop(splits)
        merged = zip(one, reversed(other), strict=True)
        _push(splits, serial, [(mine[0] + more[0], mine[1] + more[1]) for mine, more in merged])
        serial += 1
    return [sorted(places) for _, places in splits[0][2]]


def _push(
    splits: list[tuple[int, int, list[tuple[int, list[int]]]]],
    serial: int,
    parts: list[tuple[int, list[int]]],
) -> None:
    parts = sorted(parts, key=lambda part: part[0], reverse=True)
    heapq.heappush(splits, (parts[-1][0] - parts[0][0], serial, parts))
