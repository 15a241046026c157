"""The batches of a rank, in order, as all ranks agree on them."""

from __future__ import annotations

import atexit
import logging
import queue
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rolldock.errors import Deadline, LeaseGone, QueueError
from rolldock.torch.errors import LoaderError, RankLost
from rolldock.torch.packing import Labels
from rolldock.torch.plan import Plan, Settings
from rolldock.torch.reading import Read, Reads
from rolldock.torch.taking import Taken, Taker, Used, give_back, takers

log = logging.getLogger("rolldock.torch")
#: How often the leader tells the other ranks that it still waits for rows, in seconds.
HEARTBEAT_S = 20.0


#: The streams that may have to be ended at the exit of the interpreter.
_open: weakref.WeakSet[Stream] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends all streams, so that no thread is left in a call of the queue.

    Functions for the exit run in the reverse order of their registration. This one is registered after that
    of the extension module, which ends the calls.
    """
    for stream in list(_open):
        stream.close()
    for taker in list(takers):
        taker.close()


@dataclass(frozen=True)
class Message:
    """A message of the leader to the ranks.

    Attributes:
        plans: the batches that the leader has taken since the last message.
        deliver: the number of the batch to use now. `None` if the stream has ended.
        does_wait: whether nothing is ready yet, so that another message follows.
        error: the error that every rank raises.
    """

    plans: list[Plan] = field(default_factory=list)
    deliver: int | None = None
    does_wait: bool = False
    error: Exception | None = None


class Stream:
    """The batches of this rank, in order. Each batch is acked when the next one is requested."""

    def __init__(self, settings: Settings, used: Used) -> None:
        self._settings, self._used = settings, used
        self._reads = Reads(settings)
        self._taker = Taker(settings, used, self._reads) if settings.ranks.is_leader else None
        #: The leader's batches that are not in use yet, in order.
        self._pending: deque[Taken] = deque()
        #: The leader's batch in use, until it is acked; otherwise nothing.
        self._held: deque[Taken] = deque()
        #: The reason why no batches follow the pending ones.
        self._failure: BaseException | None = None
        self._has_asked = self._has_ended = self._has_current = self._is_over = False
        if self._taker is not None:
            # The garbage collector may call this in any thread, so it waits for nothing.
            weakref.finalize(self, self._taker.stop).atexit = False
        _open.add(self)

    def __iter__(self) -> Iterator[Read]:
        return self

    def __next__(self) -> Read:
        if self._is_over:
            raise StopIteration
        if self._has_current:
            self._settings.ranks.wait_for_all()
            self._has_current = False
        number = self._agree()
        if number is None:
            self.close()
            raise StopIteration
        try:
            read = self._reads.finish(number)
        except BaseException:
            if self._settings.ranks.group is None:
                _give_back_all(self._held)
            else:
                # This rank cannot use the batch, and the other ranks must not ack it.
                self.close()
            raise
        self._has_current = True
        return read

    def ack(self) -> None:
        """Acks the batch in use, if it was not acked. Only the leader holds a lease."""
        if not self._held:
            return
        held = self._held.popleft()
        rows = Labels.of(held.batch).rows()
        try:
            held.batch.ack()
            self._used.discard(rows)
        except LeaseGone:
            self._used.add(rows)
            log.warning(
                "batch=%d: its lease was lost; its rows come again, and are left out", held.plan.number
            )
        except QueueError:
            self._used.add(rows)
            raise

    def ack_of(self, number: int) -> None:
        """Acks a batch if it is the one in use."""
        if self._held and self._held[0].plan.number == number:
            self.ack()

    def close(self) -> None:
        """Gives back the batch in use, if it was not acked, and all later ones."""
        self._is_over = True
        # The taker ends first, so that it does not take the rows again.
        if self._taker is not None:
            self._taker.close()
        self._reads.close()
        for each in (self._held, self._pending):
            _give_back_all(each)

    def _agree(self) -> int | None:
        """Returns the number of the next batch, which is the same on every rank, or `None` at the end."""
        begun = time.monotonic()
        while True:
            message = self._settings.ranks.share_of_leader(self._message(begun))
            if message.error is not None:
                raise message.error
            for plan in message.plans:
                self._reads.begin(plan)
            if not message.does_wait:
                return message.deliver

    def _message(self, begun: float) -> Message | None:
        """Returns the message of the leader to all ranks. Other ranks send no message."""
        if self._taker is None:
            return None
        try:
            return self._lead(self._taker, begun)
        except (QueueError, LoaderError) as error:
            return Message(error=error)
        except Exception as error:
            if self._settings.ranks.group is None:
                raise
            # Another process may be unable to read an arbitrary exception of this process.
            log.exception("the rank that takes the batches has failed")
            return Message(error=RankLost(f"the rank that takes the batches has failed: {error!r}"))

    def _lead(self, taker: Taker, begun: float) -> Message:
        # Every rank has used the last batch.
        self.ack()
        if not self._has_asked:
            taker.request()
            self._has_asked = True
        taker.start()
        plans: list[Plan] = []
        while True:
            plans += self._collected(taker, begun)
            if self._pending:
                chosen = self._pending.popleft()
                if self._begin_to_use(chosen, taker):
                    return Message(plans, chosen.plan.number)
            elif self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            else:
                return Message(plans, does_wait=not self._has_ended)

    def _collected(self, taker: Taker, begun: float) -> list[Plan]:
        """Collects the batches that were taken. Waits if there is none to use, at most until the next
        heartbeat.
        """
        plans = []
        while self._failure is None and not self._has_ended:
            try:
                found = taker.next(0 if self._pending else self._patience_s(begun))
            except queue.Empty:
                break
            if isinstance(found, BaseException):
                self._failure = found
            elif found is None:
                self._has_ended = True
            else:
                self._pending.append(found)
                plans.append(found.plan)
        return plans

    def _patience_s(self, begun: float) -> float:
        wait_s = self._settings.wait_s
        if wait_s is None:
            return HEARTBEAT_S
        left = begun + wait_s - time.monotonic()
        if left <= 0:
            raise Deadline(
                f"partition={self._settings.partition} task={self._settings.task}: expected a batch within "
                f"{wait_s} s, found none"
            )
        return min(left, HEARTBEAT_S)

    def _begin_to_use(self, chosen: Taken, taker: Taker) -> bool:
        """Returns whether the batch can be used: its lease is held, and none of its rows was used in another
        batch since the take. If not, the queue delivers its rows again."""
        labels = [part.labels for part in chosen.plan.parts]
        is_fresh = all(len(self._used.fresh(of)) == len(of.groups) for of in labels)
        if is_fresh and not chosen.batch.is_lost:
            self._held.append(chosen)
            self._has_asked = False
            return True
        give_back(chosen.batch)
        self._has_ended = False
        taker.request()
        taker.start()
        return False


def _give_back_all(batches: deque[Taken]) -> None:
    while batches:
        give_back(batches.popleft().batch)
