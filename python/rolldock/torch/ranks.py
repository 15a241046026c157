"""The place of this process among the data-parallel ranks, and the messages between ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from rolldock.torch.errors import LoaderError, RankLost

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
#: The longest time that a rank waits for another live rank by default, in seconds.
TIMEOUT_S = 7200.0


@dataclass(frozen=True)
class Ranks:
    """The place of this process in a job. `Ranks.here()` makes it from the numbers that launchers set.

    A replica is a complete copy of the model. The replicas get different rows, and the members of a replica
    (tensor-, pipeline- or context-parallel ranks) get the same rows.

    With a process group, the group's first rank takes every batch, and tells each rank the rank's rows. All
    ranks then make the same number of steps with the same number of micro-batches, and a batch is acked when
    every rank has used it. Without a process group, each process takes its own share, which the queue
    balances by tokens. The processes then do not communicate, and may make different numbers of steps.

    Attributes:
        replica: the number of the replica of this process, from 0.
        replicas: the number of replicas.
        member: the number of this process in its replica, from 0.
        members: the number of processes of a replica.
        group: a process group with the gloo backend that has all members of all replicas, for this loader
            only. Every process must then iterate over its loader in the same way.

    Raises:
        LoaderError: a number is out of range, or the group has another size.
    """

    replica: int = 0
    replicas: int = 1
    member: int = 0
    members: int = 1
    group: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (0 <= self.replica < self.replicas and 0 <= self.member < self.members):
            raise LoaderError(f"expected replica < replicas and member < members, found {self}")
        if self.group is not None and dist.get_world_size(self.group) != self.replicas * self.members:
            raise LoaderError(
                f"expected a group of replicas * members = {self.replicas * self.members} ranks, found "
                f"{dist.get_world_size(self.group)}"
            )

    @classmethod
    def here(
        cls,
        *,
        members: int = 1,
        rank: int | None = None,
        world_size: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Returns the place of this process. Ranks with consecutive numbers are the members of a replica.

        If `torch.distributed` is initialised, it gives the numbers, and this is a collective call that makes
        a process group with the gloo backend. Otherwise the arguments give the numbers. Without arguments,
        the environment variables `RANK` and `WORLD_SIZE` give them. Without those, this is the only process.

        Args:
            members: the number of ranks of a replica. It divides the number of all ranks.
            rank: the number of this process, from 0.
            world_size: the number of processes.
            timeout_s: the longest time that a rank waits for another live rank, in seconds.

        Raises:
            LoaderError: the numbers do not fit together.
        """
        if (rank is None) != (world_size is None):
            raise LoaderError(f"expected rank and world_size, or neither; found {rank} and {world_size}")
        is_initialized = dist.is_available() and dist.is_initialized()
        if is_initialized:
            found = dist.get_rank(), dist.get_world_size()
            if rank is not None and (rank, world_size) != found:
                raise LoaderError(
                    f"expected the numbers of torch.distributed, rank {found[0]} of {found[1]}, found rank "
                    f"{rank} of {world_size}"
                )
            rank, world_size = found
        elif rank is None or world_size is None:
            rank, world_size = _of_environment()
        if members < 1 or world_size % members:
            raise LoaderError(f"expected members that divide world_size={world_size}, found {members}")
        if not 0 <= rank < world_size:
            raise LoaderError(f"expected a rank below world_size={world_size}, found {rank}")
        group = None
        if is_initialized and world_size > 1:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        return cls(rank // members, world_size // members, rank % members, members, group)

    @property
    def is_leader(self) -> bool:
        """Whether this process takes the batches: it is the first of its group, or has no group."""
        return self.group is None or dist.get_rank(self.group) == 0

    def wait_for_all(self) -> None:
        """Waits until every rank of the group is here.

        Raises:
            RankLost: a rank has died.
        """
        if self.group is not None:
            self._told(lambda: dist.barrier(group=self.group))

    def share_of_leader(self, message: T | None) -> T:
        """Sends the leader's message to every rank of the group, and returns it."""
        sent = message if self.group is None else self._told(lambda: self._broadcast(message))
        if sent is None:
            raise RankLost("expected a message of the rank that takes the batches, found none")
        return sent

    def _broadcast(self, message: T | None) -> T | None:
        box = [message]
        dist.broadcast_object_list(box, src=dist.get_global_rank(self.group, 0), group=self.group)
        return box[0]

    @staticmethod
    def _told(call: Callable[[], T]) -> T:
        try:
            return call()
        except RuntimeError as error:
            raise RankLost(f"another rank of the loader does not answer: {error}") from error


def _of_environment() -> tuple[int, int]:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return 0, 1
    try:
        return int(rank), int(world_size)
    except ValueError:
        raise LoaderError(
            f"expected whole numbers in RANK and WORLD_SIZE of the environment, found {rank!r} and "
            f"{world_size!r}"
        ) from None
