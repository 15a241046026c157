"""Takes batches ahead, in a thread, and divides them among replicas."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rolldock._calls import taken
from rolldock.errors import QueueError
from rolldock.table import Batch
from rolldock.torch.balance import balanced, costs_of, fewest
from rolldock.torch.packing import Labels, lengths_of
from rolldock.torch.plan import Part, Plan, Settings, Totals
from rolldock.torch.reading import Reads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rolldock.columns import Array

log = logging.getLogger("rolldock.torch")

#: The takers of this process. A taker whose loader was collected exists until its thread has ended.
takers: weakref.WeakSet[Taker] = weakref.WeakSet()


@dataclass(frozen=True)
class Taken:
    """A batch that this process holds."""

    batch: Batch
    plan: Plan


class Used:
    """Rows that were used but are not acked, so the queue may deliver them again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: set[tuple[int, str]] = set()

    def add(self, rows: Iterable[tuple[int, str]]) -> None:
        with self._lock:
            self._rows.update(rows)

    def discard(self, rows: Iterable[tuple[int, str]]) -> None:
        with self._lock:
            self._rows.difference_update(rows)

    def rows(self) -> set[tuple[int, str]]:
        with self._lock:
            return set(self._rows)

    def fresh(self, labels: Labels) -> Array:
        """Returns the indices of the rows that were not used."""
        with self._lock:
            if not self._rows:
                return np.arange(len(labels.groups))
            is_fresh = [row not in self._rows for row in labels.rows()]
        return np.flatnonzero(np.array(is_fresh, dtype=bool))


class Taker:
    """Takes batches in a thread: one batch for each request, and `prefetch` further batches.

    The thread and the consumer share no lock: the garbage collector may call `stop` in any thread, also in
    the middle of a function of this class.
    """

    def __init__(self, settings: Settings, used: Used, reads: Reads) -> None:
        self._settings, self._used, self._reads = settings, used, reads
        #: An entry for each batch that may be taken.
        self._slots: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(settings.prefetch):
            self._slots.put(None)
        #: Batches, then `None` at the end of the puts; or an error, after which the thread has ended.
        self._ready: queue.SimpleQueue[Taken | BaseException | None] = queue.SimpleQueue()
        self._pending: Any = None
        self._is_stopped = False
        self._number = 0
        self._thread: threading.Thread | None = None
        #: Whether the thread takes batches. It becomes false before the consumer can see why the thread ends.
        #: A consumer that asks again therefore never waits for a thread that is about to end.
        self._is_taking = False
        takers.add(self)

    def start(self) -> None:
        """Starts the thread if it does not run."""
        if self._is_taking:
            return
        thread = threading.Thread(target=self._run, name="rolldock taker", daemon=True)
        self._is_taking = True
        try:
            thread.start()
        except RuntimeError:
            self._is_taking = False
            raise
        self._thread = thread

    def request(self) -> None:
        """Allows one more batch to be taken."""
        self._slots.put(None)

    def next(self, wait_s: float) -> Taken | BaseException | None:
        """Returns the next batch, `None` at the end of the puts, or an error.

        Raises:
            queue.Empty: there is no batch in time.
        """
        return self._ready.get(timeout=wait_s) if wait_s > 0 else self._ready.get_nowait()

    def stop(self) -> None:
        """Tells the thread to end, and waits for nothing. Batches give their rows back when they are
        dropped."""
        self._is_stopped = True
        if self._pending is not None:
            self._pending.cancel()
        self._slots.put(None)

    def close(self) -> None:
        """Ends the thread, and gives back the batches that `next` has not returned."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        while not self._ready.empty():
            found = self._ready.get()
            if isinstance(found, Taken):
                give_back(found.batch)

    def _run(self) -> None:
        while True:
            self._slots.get()
            try:
                found = self._take()
            except BaseException as error:
                self._fail(error)
                return
            if found is None:
                self._is_taking = False
                self._ready.put(None)
                return
            if self._settings.ranks.group is None:
                # There are no other ranks that need the plan first.
                try:
                    self._reads.begin(found.plan, found.batch)
                except RuntimeError as error:
                    # Python starts no more reads: the program ends, or the system has no thread left.
                    give_back(found.batch)
                    self._fail(error)
                    return
            self._ready.put(found)

    def _fail(self, error: BaseException) -> None:
        """Hands an error to the consumer, which may ask again."""
        self._slots.put(None)
        self._is_taking = False
        if not self._is_stopped:
            self._ready.put(error)

    def _take(self) -> Taken | None:
        settings = self._settings
        client, partition = settings.client, settings.partition
        while True:
            self._pending = taken(client._queue, partition, settings.task, None, settings.take_options())
            if self._is_stopped:
                # `stop` may have found no call to cancel.
                return None
            lease = self._pending.wait()
            if lease is None:
                return None
            batch = Batch(lease, client._queue, partition)
            # The lease is renewed until it ends.
            batch.__enter__()
            labels = Labels.of(batch)
            fresh = self._used.fresh(labels)
            if len(fresh):
                return Taken(batch, self._planned(batch, labels, fresh))
            log.info("rows=%d were used before: they are acked and left out", len(batch))
            batch.ack()
            self._used.discard(labels.rows())

    def _planned(self, batch: Batch, labels: Labels, fresh: Array) -> Plan:
        settings = self._settings
        lengths, loss_tokens = (each[fresh] for each in lengths_of(batch, settings.fields))
        replicas = 1 if settings.ranks.group is None else settings.ranks.replicas
        parts = balanced(costs_of(lengths, settings.balance), replicas)
        budget = settings.micro_batch_tokens
        count = 1 if budget is None else max(len(fewest(lengths[part], budget)) for part in parts)
        self._number += 1
        return Plan(
            number=self._number,
            parts=[Part(fresh[part], labels.at(fresh[part])) for part in parts],
            micro_batches=count,
            totals=Totals(len(fresh), int(lengths.sum()), int(loss_tokens.sum())),
            first=int(labels.handles[0]),
        )


def give_back(batch: Batch) -> None:
    """Gives the rows of a batch back. If this fails, the queue delivers them again when the lease expires."""
    try:
        batch.nack()
    except QueueError as error:
        log.info("rows=%d come again when their lease expires: %s", len(batch), error)
