"""A run of Rolldock in place of verl's rollout."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rolldock.client import Client
from rolldock.errors import Deadline, LeaseGone, QueueError
from rolldock.transfer_queue import kv_batch_put, kv_list
from rolldock.verl.errors import BadBatch, RolloutEnded
from rolldock.verl.keyed import to_kv_batch_meta
from rolldock.verl.source import Columns

if TYPE_CHECKING:
    from typing_extensions import Self

    from rolldock.table import Batch

log = logging.getLogger("rolldock.verl")
#: verl's partition for training.
PARTITION_ID = "train"
#: How long a take waits before the thread checks whether the manager was closed, in seconds.
_TAKE_S = 1.0


@dataclass(frozen=True)
class _Wanted:
    """A prompt of the trainer that has no trajectories yet."""

    uid: str
    global_steps: int


class RolloutManager:
    """Gives verl's V1 trainer its trajectories, in place of verl's `AgentLoopManager`. The program must
    have called `transfer_queue.init`.

    For each prompt that the trainer submits, a thread takes a group of the run, and puts its rows into
    `rolldock.transfer_queue` under the uid of the prompt. The run draws its prompts from its own data set, so
    the trainer's prompts only say how many groups the trainer wants. The rewards are those of the run.

    The rows stay leased, and the lease is renewed, until verl has removed their trajectories from the
    transfer queue, which verl does at the end of a step. The rows are acked when the next prompts are
    submitted. The rows of a trainer that dies are delivered again.

    Args:
        client: a client of the run's queue.
        partition: the partition of the run's queue.
        task: the task that takes.
        columns: the columns of the rows. By default those of a run.
    """

    def __init__(
        self,
        client: Client,
        partition: str = "train",
        *,
        task: str = "train",
        columns: Columns | None = None,
    ) -> None:
        self._client, self._partition, self._task = client, partition, task
        self._columns = columns or Columns()
        self._changed = threading.Condition()
        self._wanted: deque[_Wanted] = deque()
        self._held: list[tuple[Batch, list[str]]] = []
        self._failure: Exception | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="rolldock rollout", daemon=True)
        self._thread.start()

    @classmethod
    def create(cls, **_: Any) -> Self:
        """Makes a manager for the run whose queue is at `ROLLDOCK_QUEUE_URL` of the environment. If
        `actor_rollout_ref.rollout.agent.agent_loop_manager_class` names this class, verl calls this method
        with its configuration and clients. They are not read.

        Raises:
            RolloutEnded: the environment names no run.
        """
        url = os.environ.get("ROLLDOCK_QUEUE_URL")
        if not url:
            raise RolloutEnded("expected the address of a run's queue in ROLLDOCK_QUEUE_URL, found none")
        return cls(Client(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate_sequences(self, prompts: Any) -> None:
        """Asks for a group for each prompt, and returns immediately. Rows whose trajectories verl has removed
        are acked.

        Args:
            prompts: verl's batch of prompts, of which `uid`, `global_steps` and `validate` are read.

        Raises:
            BadBatch: the prompts are for validation, which the run does itself.
            RolloutEnded: earlier prompts got no group.
        """
        if bool(_plain(prompts.get("validate", False))):
            raise BadBatch("expected prompts for training; the run validates: set trainer.test_freq=-1")
        if self._failure is not None:
            raise RolloutEnded(f"partition={self._partition}: {self._failure}") from self._failure
        self._ack_used()
        steps = int(_plain(prompts["global_steps"]))
        with self._changed:
            self._wanted.extend(_Wanted(str(uid), steps) for uid in _each(prompts["uid"]))
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread. Rows whose trajectories verl has removed are acked; the others are given back."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._ack_used()
        while self._held:
            self._held.pop()[0].nack()

    def _ack_used(self) -> None:
        with self._changed:
            # All trajectories of these batches were put, so verl has removed the absent trajectories.
            held = list(self._held)
        kept = {key.partition("_")[0] for key in kv_list(PARTITION_ID).get(PARTITION_ID, {})}
        for batch, uids in held:
            if not kept.isdisjoint(uids):
                continue
            with self._changed:
                self._held.remove((batch, uids))
            try:
                batch.ack()
            except LeaseGone:
                log.warning(
                    "partition=%s: a lease was lost; the rows of %s come again", self._partition, uids
                )

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._is_closed)
                if self._is_closed:
                    return
                count = len(self._wanted)
            try:
                self._publish(count)
            except Exception as error:
                log.exception("partition=%s: prompts of the trainer get no trajectories", self._partition)
                self._fail(error)

    def _publish(self, count: int) -> None:
        """Takes at most `count` groups, and puts them under the uids of the oldest prompts."""
        options: dict[str, Any] = {"groups": count, "columns": self._columns.names}
        try:
            batch = self._client.take(self._partition, task=self._task, wait_s=_TAKE_S, **options)
        except Deadline:
            batch = None
            if self._may_get_more():
                return
        if batch is None:
            raise RolloutEnded("the run has ended, and all of its rows are taken")
        # The lease is renewed from here on, until `_ack_used` or `close`.
        batch.__enter__()
        groups = list(dict.fromkeys(batch.groups))
        with self._changed:
            chosen = [self._wanted[place] for place in range(len(groups))]
        try:
            self._put(batch, dict(zip(groups, chosen, strict=True)))
        except BaseException:
            batch.nack()
            raise
        with self._changed:
            for _ in chosen:
                self._wanted.popleft()
            self._held.append((batch, [wanted.uid for wanted in chosen]))

    def _may_get_more(self) -> bool:
        """Whether there may be rows that this process has not taken. A take would also wait for leased rows,
        but these rows are leased until the trainer's step ends.
        """
        status = self._client.status(self._partition)
        task = next(task for task in status["tasks"] if task["task"] == self._task)
        return not status["ended"] or task["ready_rows"] + task["incomplete_rows"] + task["away_rows"] > 0

    def _put(self, batch: Batch, wanted: dict[str, _Wanted]) -> None:
        uids = {group: one.uid for group, one in wanted.items()}
        steps = max(one.global_steps for one in wanted.values())
        to_kv_batch_meta(
            batch, partition_id=PARTITION_ID, uids=uids, global_steps=steps, columns=self._columns
        )
        # The trainer samples a prompt as soon as the prompt is finished. Its trajectories must be put before.
        _mark(uids.values(), "finished")

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            left = [wanted.uid for wanted in self._wanted]
            self._wanted.clear()
        # Otherwise the trainer would wait for these prompts for ever.
        try:
            _mark(left, "failure")
        except (QueueError, ValueError, RuntimeError, OSError):
            log.exception("the transfer queue does not learn that prompts have failed")


def _mark(uids: Iterable[str], status: str) -> None:
    keys = list(uids)
    if keys:
        kv_batch_put(keys, PARTITION_ID, tags=[{"status": status}] * len(keys))


def _plain(value: Any) -> Any:
    """Returns a value that a TensorDict has for all of its rows."""
    value = getattr(value, "data", value)
    return value[0] if isinstance(value, list) else value


def _each(values: Any) -> list[Any]:
    listed: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    return listed
