"""Reads and packs the rows of this rank, in a thread."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rolldock.torch.balance import micro_batches
from rolldock.torch.packing import MicroBatch, lengths_of, pack

if TYPE_CHECKING:
    from rolldock.columns import Array
    from rolldock.table import Table
    from rolldock.torch.plan import Part, Plan, Settings


@dataclass(frozen=True)
class Read:
    """The rows of this rank."""

    plan: Plan
    part: Part
    micro_batches: list[MicroBatch]


class Reads:
    """The batches that are being read and packed, or are ready."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rolldock reader")
        self._lock = threading.Lock()
        self._reads: dict[int, Future[Read]] = {}

    def begin(self, plan: Plan, batch: Table | None = None) -> None:
        """Begins to read this rank's rows of a batch: from the rows of the whole batch, or by handle. Does
        nothing if a read of this batch has begun before."""
        with self._lock:
            if plan.number not in self._reads:
                self._reads[plan.number] = self._thread.submit(_read, self._settings, plan, batch)

    def finish(self, number: int) -> Read:
        """Waits for the rows of a batch. Earlier batches are forgotten."""
        with self._lock:
            for earlier in [read for read in self._reads if read < number]:
                self._reads.pop(earlier).cancel()
            read = self._reads.pop(number)
        return read.result()

    def close(self) -> None:
        """Forgets all batches, and ends the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._reads.clear()


def _read(settings: Settings, plan: Plan, batch: Table | None) -> Read:
    if batch is None:
        part = plan.parts[settings.ranks.replica]
        handles = part.labels.handles if len(part.places) else [plan.first]
        table = settings.client.get(settings.partition, handles, columns=settings.fields.names)
        places = np.arange(len(part.places))
    else:
        part = plan.parts[0]
        table, places = batch, part.places
    packed = [
        pack(table, places[chosen], part.labels.at(chosen), settings.fields)
        for chosen in _micro_batches(settings, plan, lengths_of(table, settings.fields)[0][places])
    ]
    if settings.pin_memory:
        packed = [micro.pin_memory() for micro in packed]
    return Read(plan, part, packed)


def _micro_batches(settings: Settings, plan: Plan, lengths: Array) -> list[Array]:
    if settings.micro_batch_tokens is None:
        return [np.arange(len(lengths))]
    return micro_batches(lengths, settings.micro_batch_tokens, plan.micro_batches)
