"""The calls of a TransferDock: the experiences of one iteration, by index and column.

    from rolldock import Client
    from rolldock.transfer_dock import TransferDock

    dock = TransferDock(Client(url), "dock", {"actor_train": ["responses"]}, rows=512, samples_per_prompt=8)
    dock.put_experience({"responses": responses}, indexes)
    with dock.get_experience("actor_train", prompts=4, wait_s=60) as experience:
        train(experience["responses"], experience.indexes)

A dock has one row for each sample of an iteration. The samples of a prompt have consecutive indexes and form
a group. Each consumer gets every experience once. Rows stay until `clear`, even if they are consumed: a task
that never acks keeps them. The differences from other docks are in `docs/src/compat.md`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rolldock import _calls, _rolldock
from rolldock.columns import rows_of
from rolldock.errors import BadRequest, Deadline, Empty, KeyExists, UnknownKey, UnknownTask
from rolldock.table import Batch, Table

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rolldock._calls import DeclareOptions, TakeOptions
    from rolldock.client import Client
    from rolldock.columns import Array

#: The task that keeps rows until they are cleared. The task never acks rows.
KEEPER = "_dock"
#: The time that a lease lasts if the options of the dock do not set it.
LEASE_MS = 600_000


class Experience(Batch):
    """Experiences that a consumer holds. They are consumed by `ack` or at the end of a `with` block, and
    delivered again if the block raises or the experience is dropped."""

    @property
    def indexes(self) -> Array:
        """The index of each row; shape `(rows,)`, int64."""
        import numpy as np

        return np.array([int(key) for key in self.keys if key is not None], dtype=np.int64)


class TransferDock:
    """A dock, whose state is in the queue of `client`. Several processes may use one dock.

    Args:
        client: the queue.
        name: the partition of the dock. It is declared; if it exists with an equal declaration, it is used
            with its rows.
        consumers: the columns that each consumer waits for, by its name. A consumer without columns gets all
            existing columns.
        rows: the number of samples of an iteration.
        samples_per_prompt: the number of samples of a prompt, a divisor of `rows`.
        **options: further options of the declaration, as for `Client.declare`.

    Raises:
        BadRequest: `rows` is not a multiple of `samples_per_prompt`.
        DeclaredOtherwise: the partition exists with another declaration.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        consumers: Mapping[str, Sequence[str]],
        *,
        rows: int,
        samples_per_prompt: int = 1,
        **options: Unpack[DeclareOptions],
    ) -> None:
        if samples_per_prompt < 1 or rows < 1 or rows % samples_per_prompt:
            raise BadRequest(
                f"expected rows to be a multiple of samples_per_prompt={samples_per_prompt}, "
                f"found rows={rows}"
            )
        self.client = client
        self.name = name
        self.rows = rows
        self.samples_per_prompt = samples_per_prompt
        self._consumers = {consumer: list(columns) for consumer, columns in consumers.items()}
        self._patience_s = options.get("lease_ms", LEASE_MS) / 1e3
        client.declare(name, tasks={**self._consumers, KEEPER: []}, capacity_rows=rows, **options)

    def put_experience(self, data: Any, indexes: Sequence[int] | Array) -> None:
        """Writes columns of the rows `indexes`. The first columns create a row. Later columns are added to
        the row.

        After an error the rows of some prompts may have been written; each row is written whole or not at
        all.

        Args:
            data: the columns, as in `Client.put`, with one value for each index.
            indexes: indexes from 0 below `rows`.

        Raises:
            BadRequest: an index is not below `rows`, or the counts differ.
            ColumnExists: a row has a column already.
            WrongType: a column has another type than before.
        """
        numbers = [int(index) for index in indexes]
        table = Table(rows_of(data, copy=self.client._queue.is_embedded))
        if len(table) != len(numbers):
            raise BadRequest(f"expected indexes for each of rows={len(table)}, found {len(numbers)}")
        if not numbers:
            raise Empty("expected rows, found none")
        for index in numbers:
            if not 0 <= index < self.rows:
                raise BadRequest(f"expected indexes below rows={self.rows}, found {index}")
        known = self._handles(numbers)
        if known is not None:
            self.client.write(self.name, known, table)
            return
        prompts: dict[int, list[int]] = {}
        for place, index in enumerate(numbers):
            prompts.setdefault(index // self.samples_per_prompt, []).append(place)
        for prompt, places in sorted(prompts.items()):
            self._put_prompt(prompt, [numbers[place] for place in places], _picked(table, places))

    def get_experience(
        self,
        consumer: str,
        columns: Sequence[str] | None = None,
        *,
        indexes: Sequence[int] | Array | None = None,
        samples: int | None = None,
        prompts: int | None = None,
        wait_s: float = 0.0,
    ) -> Experience | None:
        """Takes experiences that a consumer has not consumed. One of `indexes`, `samples` and `prompts` is
        required.

        Args:
            consumer: the consumer.
            columns: the columns to read, among those that the consumer waits for. All of them by default.
            indexes: exactly these experiences, in this order.
            samples: this many experiences of any prompts.
            prompts: all samples of this many prompts.
            wait_s: how long to wait until all of them have the consumer's columns, in seconds.

        Returns:
            The experiences, or `None` if some are missing and `wait_s` is 0.

        Raises:
            Deadline: some were missing for the whole wait.
            RowConsumed: the consumer has consumed one of the indexes.
            UnknownTask: the dock has no such consumer.
        """
        if sum(choice is not None for choice in (indexes, samples, prompts)) != 1:
            raise BadRequest("expected one of indexes, samples and prompts")
        deadline = time.monotonic() + wait_s
        options: TakeOptions = {}
        if indexes is not None:
            rows = self._handles_in_time([int(index) for index in indexes], deadline, wait_s)
            if rows is None:
                return None
            options["only"] = rows
        elif samples is not None:
            options["rows"] = options["at_least"] = samples
        elif prompts is not None:
            options["groups"] = options["at_least"] = prompts
        wanted = self._columns(consumer, columns)
        if wanted:
            options["columns"] = wanted
        try:
            lease = _calls.taken(
                self.client._queue, self.name, consumer, max(deadline - time.monotonic(), 0.0), options
            ).wait()
        except Deadline:
            if wait_s:
                raise
            return None
        return None if lease is None else Experience(lease, self.client._queue, self.name)

    def all_consumed(self, consumer: str) -> bool:
        """Whether a consumer has consumed all samples of the iteration.

        Raises:
            UnknownTask: the dock has no such consumer.
        """
        for task in self.client.status(self.name)["tasks"]:
            if task["task"] == consumer:
                acked: int = task["acked_rows"]
                return acked == self.rows
        raise self._unknown(consumer)

    def clear(self) -> None:
        """Frees all rows for the next iteration, held rows included."""
        self.client.clear_all(self.name)

    def _columns(self, consumer: str, columns: Sequence[str] | None) -> list[str]:
        declared = self._consumers.get(consumer)
        if declared is None:
            raise self._unknown(consumer)
        if columns is None:
            return declared
        for column in columns:
            if declared and column not in declared:
                raise BadRequest(
                    f"consumer={consumer} was declared without column={column}, so it does not wait for it"
                )
        return list(columns)

    def _unknown(self, consumer: str) -> UnknownTask:
        known = ", ".join(self._consumers)
        return UnknownTask(f"expected a consumer of dock={self.name} ({known}), found {consumer}")

    def _handles(self, indexes: Sequence[int]) -> list[int] | None:
        """The rows of these indexes; `None` if one is missing."""
        try:
            return [row.handle for row in self.client.find(self.name, map(str, indexes))]
        except UnknownKey:
            return None

    def _handles_in_time(self, indexes: Sequence[int], deadline: float, wait_s: float) -> list[int] | None:
        for _ in self._changes("the rows of the indexes", deadline, wait_s):
            rows = self._handles(indexes)
            if rows is not None or not wait_s:
                return rows
        return None

    def _changes(self, what: str, deadline: float, wait_s: float) -> Iterator[None]:
        """Yields once immediately, and then whenever the dock has changed.

        Raises:
            Deadline: the dock has not changed in time.
        """
        while True:
            revision = self.client.status(self.name)["revision"]
            yield
            left = deadline - time.monotonic()
            if left <= 0:
                raise Deadline(
                    f"expected {what} of dock={self.name} within wait_s={wait_s}, found some missing"
                )
            self.client.status(self.name, after=revision, wait_s=min(left, 20.0))

    def _put_prompt(self, prompt: int, indexes: Sequence[int], rows: Table) -> None:
        """Writes rows of one prompt. Some of them may exist already."""
        try:
            self._put_new(prompt, indexes, rows)
        except KeyExists:
            for place, index in enumerate(indexes):
                self._put_row(prompt, index, _picked(rows, [place]))

    def _put_row(self, prompt: int, index: int, row: Table) -> None:
        deadline = time.monotonic() + self._patience_s
        for _ in self._changes("the first put of a row", deadline, self._patience_s):
            known = self._handles([index])
            if known is not None:
                self.client.write(self.name, known, row)
                return
            try:
                self._put_new(prompt, [index], row)
                return
            except KeyExists:
                # The first put of the row, by another producer, is in progress.
                continue

    def _put_new(self, prompt: int, indexes: Sequence[int], rows: Table) -> None:
        self.client.put(
            self.name,
            str(prompt),
            rows,
            wait_s=self._patience_s,
            group_size=self.samples_per_prompt,
            keys=[str(index) for index in indexes],
        )


def _picked(table: Table, places: list[int]) -> Table:
    picked: _rolldock.Rows = table._rows.picked(places)
    return Table(picked)
