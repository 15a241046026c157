"""The calls of a DataPool: steps of trajectories are submitted, and whole prompt groups are fetched.

    from rolldock import Client
    from rolldock.data_pool import DataPool, Step

    pool = DataPool(Client(url), "pool", group_size=8)
    pool.submit_step(Step(prompt_ids, response_ids, reward, "t0", "p0", policy_version=3, is_last=True))
    with pool.wait_batch("train", 64, wait_s=600) as batch:
        train(batch.ragged("response_ids"), batch.off_policy, batch.importance_weights)

A submitted step is immediately a row, which is as durable as the queue. A trajectory is complete after its
last step or after `complete_trajectory`. The group of a prompt is complete when it has as many complete
trajectories as its size. Incomplete groups do not prevent other groups from being fetched. The differences
from other pools are in `docs/src/compat.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from rolldock import _calls
from rolldock.columns import Ragged
from rolldock.data_pool.batch import IMPORTANCE_WEIGHT, PoolBatch
from rolldock.data_pool.step import Step, parts_of, table_of
from rolldock.errors import BadRequest, Deadline, GroupClosed, KeyExists, StaleHandle, StepDiffers, UnknownKey

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rolldock._calls import TakeOptions
    from rolldock.client import Client
    from rolldock.columns import Array
    from rolldock.table import Table

__all__ = ["DataPool", "PoolBatch", "PoolOptions", "Step"]


class PoolOptions(TypedDict, total=False):
    """The options of a pool's declaration, with the meanings that `DeclareOptions` has."""

    length_columns: Sequence[str]
    order: Literal["fifo", "priority", "freshest"] | int
    capacity_bytes: int
    row_bytes_max: int
    durability: Literal["none", "os", "fsync"]
    on_full: Literal["block", "refuse", "drop_oldest"]
    lease_ms: int


class DataPool:
    """A pool, whose state is in the queue of `client`. Several processes may use one pool.

    Args:
        client: the queue.
        name: the partition of the pool. It is declared; if it exists with an equal declaration, it is used
            with its rows.
        group_size: the number of trajectories of a prompt.
        group_sizes: a function from a prompt to the number of its trajectories, or to `None` for
            `group_size`. It must always return the same number for a prompt.
        tasks: the tasks that must ack a step before it is freed, as for `Client.declare`. A task that needs
            the column `importance_weight` waits until that column is written.
        capacity_steps: the most steps.
        group_deadline_s: the age at which an incomplete group is given up, in seconds since its first step.
            Ages are checked at each submission and fetch. `None` gives up no group.
        unfinished: whether the steps of such a group are dropped or given.
        staleness_threshold: a step is off-policy if its policy version is more than this many versions below
            the newest version.
        submit_wait_s: the time that a submission waits for room, in seconds.
        **options: further options of the declaration, as for `Client.declare`.

    Raises:
        BadRequest: a size or a time is too small.
        DeclaredOtherwise: the partition exists with another declaration.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        group_size: int,
        group_sizes: Callable[[str], int | None] | None = None,
        tasks: Sequence[str] | Mapping[str, Sequence[str]] = ("train",),
        capacity_steps: int = 65_536,
        group_deadline_s: float | None = 3600.0,
        unfinished: Literal["give", "drop"] = "drop",
        staleness_threshold: int = 1,
        submit_wait_s: float = 60.0,
        **options: Unpack[PoolOptions],
    ) -> None:
        if group_size < 1 or (group_deadline_s is not None and group_deadline_s < 1e-3):
            raise BadRequest("expected group_size of at least 1 and group_deadline_s of at least 0.001")
        self.client = client
        self.name = name
        self.group_size = group_size
        self.staleness_threshold = staleness_threshold
        self._group_sizes = group_sizes
        self._group_deadline_s = group_deadline_s
        self._unfinished: Literal["give", "drop"] = unfinished
        self._submit_wait_s = submit_wait_s
        #: The number of groups that this pool has given up since it was opened.
        self.expired_groups = 0
        options.setdefault("length_columns", ["prompt_ids", "response_ids"])
        client.declare(name, tasks=tasks, capacity_rows=capacity_steps, **options)

    def submit_step(self, step: Step) -> None:
        """Submits one step, as `submit_steps`."""
        self.submit_steps([step])

    def submit_steps(self, steps: Sequence[Step]) -> None:
        """Submits steps. An error may leave the first steps submitted. The call can then be repeated, because
        a step that was submitted before has no effect.

        Raises:
            Deadline: there was no room in time.
            GroupClosed, SampleClosed: the group or the trajectory is complete, fetched or given up.
            GroupOverflow: the group already has all of its trajectories.
            StepDiffers: a different step with the same trajectory and index exists.
            BadRequest: the attributes of a step do not fit together.
        """
        for step in steps:
            step.check()
        self.expire()
        deadline = time.monotonic() + self._submit_wait_s
        for part in parts_of(steps):
            try:
                self._put(part, deadline)
            except KeyExists:
                for step in part:
                    self._submit_again(step, deadline)

    def complete_trajectory(self, trajectory_uid: str) -> None:
        """Completes a trajectory whose last step was not marked. A repeated call has no effect while the
        trajectory exists.

        Raises:
            UnknownSample: the trajectory is unknown, or was freed.
        """
        self.expire()
        self.client.end_sample(self.name, trajectory_uid)

    def fetch_batch(self, task: str, groups: int) -> PoolBatch | None:
        """Fetches up to `groups` complete prompt groups, oldest first. Returns `None` if none is complete
        now."""
        self.expire()
        try:
            return self._take(task, groups, 0.0)
        except Deadline:
            return None

    def wait_batch(self, task: str, groups: int, *, wait_s: float) -> PoolBatch | None:
        """As `fetch_batch`, but waits until at least one group is complete. Returns `None` if none can become
        complete any more.

        Raises:
            Deadline: none was complete in time.
        """
        deadline = time.monotonic() + wait_s
        while True:
            self.expire()
            left = max(deadline - time.monotonic(), 0.0)
            wait = self._between_looks(left)
            try:
                return self._take(task, groups, wait)
            except Deadline:
                if wait >= left:
                    raise

    def write_importance_weights(self, rows: Sequence[int] | Array, weights: Sequence[float] | Array) -> None:
        """Writes the importance weights of steps, once. `rows` are `handles` of a batch.

        Raises:
            ColumnExists: a step has a weight already.
        """
        import numpy as np

        values = np.asarray(weights, dtype=np.float32)
        if len(values) != len(rows):
            raise BadRequest(f"expected weights for each of rows={len(rows)}, found {len(values)}")
        self.client.write(self.name, rows, {IMPORTANCE_WEIGHT: values})

    def announce(self, policy_version: int) -> None:
        """Announces a newer policy version. Staleness is measured from the newest version of any announcement
        or step."""
        self.client.announce(self.name, policy_version)

    def expire(self) -> list[dict[str, Any]]:
        """Gives up groups that were not complete in time, and returns them. Every submission and fetch calls
        this method first."""
        if self._group_deadline_s is None:
            return []
        closed = self.client.close_groups(
            self.name, older_than_s=self._group_deadline_s, unfinished=self._unfinished
        )
        self.expired_groups += len(closed)
        return closed

    def clear(self) -> None:
        """Frees all steps. Incomplete groups accept no more steps."""
        self.client.close_groups(self.name, older_than_s=0, unfinished="drop")
        self.client.clear_all(self.name)

    def _take(self, task: str, groups: int, wait_s: float) -> PoolBatch | None:
        # Stale groups are fetched too, and their steps are flagged.
        options: TakeOptions = {
            "groups": groups,
            "max_staleness": self.staleness_threshold,
            "stale": "deliver",
        }
        lease = _calls.taken(self.client._queue, self.name, task, wait_s, options).wait()
        return None if lease is None else PoolBatch(lease, self.client._queue, self.name)

    def _between_looks(self, left: float) -> float:
        """The time that a call waits before it looks again for groups to give up."""
        if self._group_deadline_s is None:
            return left
        return min(left, max(self._group_deadline_s / 4, 1e-3))

    def _put(self, steps: Sequence[Step], deadline: float) -> None:
        last = steps[-1]
        size = self._group_sizes(last.prompt_uid) if self._group_sizes else None
        rows = table_of(steps)
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            wait = self._between_looks(left)
            try:
                self.client.put(
                    self.name,
                    last.prompt_uid,
                    rows,
                    wait_s=wait,
                    group_size=self.group_size if size is None else size,
                    sample=last.trajectory_uid,
                    sample_is_last=last.is_last,
                    policy_version=last.policy_version,
                    keys=[step.key for step in steps],
                )
                return
            except Deadline:
                # An incomplete group may occupy the room. If it is too old, `expire` frees it.
                if wait >= left:
                    raise
                self.expire()

    def _submit_again(self, step: Step, deadline: float) -> None:
        """Submits a step that may exist already."""
        while True:
            revision = self.client.status(self.name)["revision"]
            try:
                self._put([step], deadline)
                return
            except KeyExists:
                pass
            try:
                rows = [row.handle for row in self.client.find(self.name, [step.key])]
            except UnknownKey:
                # The first submission of this step is in progress.
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Deadline(
                        f"expected the first submission of step={step.key} to end in time"
                    ) from None
                self.client.status(self.name, after=revision, wait_s=min(left, 20.0))
                continue
            self._check_same(step, rows)
            return

    def _check_same(self, step: Step, rows: Sequence[int]) -> None:
        ours = table_of([step])
        try:
            there = self.client.get(self.name, rows, columns=ours.names)
        except StaleHandle:
            raise GroupClosed(f"group={step.prompt_uid} is complete, fetched or given up") from None
        if [_plain(there, name) for name in ours.names] != [_plain(ours, name) for name in ours.names]:
            raise StepDiffers(
                f"step={step.step_index} of trajectory={step.trajectory_uid} exists and differs"
            )


def _plain(table: Table, name: str) -> Any:
    """The values of a column of one row. NaN equals itself."""
    values = table[name]
    array = values.flat() if isinstance(values, Ragged) else values
    return (str(array.dtype), array.tobytes() if array.dtype != object else list(array))
