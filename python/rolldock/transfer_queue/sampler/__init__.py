"""Samplers choose the samples of a batch."""

from rolldock.transfer_queue.sampler.base import BaseSampler
from rolldock.transfer_queue.sampler.grpo_group_n_sampler import GRPOGroupNSampler
from rolldock.transfer_queue.sampler.rank_aware_sampler import RankAwareSampler
from rolldock.transfer_queue.sampler.seqlen_balanced_sampler import SeqlenBalancedSampler
from rolldock.transfer_queue.sampler.sequential_sampler import SequentialSampler

#: The methods that read the ready indexes in ascending order, and only as many as they need.
IN_ORDER = frozenset(
    {
        GRPOGroupNSampler.sample,
        RankAwareSampler.sample,
        SeqlenBalancedSampler.sample,
        SequentialSampler.sample,
    }
)

__all__ = [
    "BaseSampler",
    "GRPOGroupNSampler",
    "RankAwareSampler",
    "SeqlenBalancedSampler",
    "SequentialSampler",
]
