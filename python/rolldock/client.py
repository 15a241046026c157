"""The client for code without an event loop."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rolldock import _calls
from rolldock._base import BaseClient
from rolldock._calls import Call, DeclareOptions, KeyedRow, PutOptions, TakeOptions
from rolldock.table import Batch, Table

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from rolldock.columns import Array


class Client(BaseClient):
    """A queue: of a server (`Client(url)`), or in this process (`Client.open(dir)`).

    A client may be used by any number of threads. All clients of a process use one pool of connections for
    each server. After a fork the child's client makes connections of its own; an embedded queue stays with
    the process that opened it (`Forked`). A client of a server can be pickled, so it can be given to a
    spawned process.

    Args:
        url: `http://HOST:PORT`, or `unix:PATH` for the socket of a server on this host.
        token: the server's bearer token. By default the environment's `ROLLDOCK_QUEUE_TOKEN`.
        patience_s: how long a call is repeated while the server does not answer, before the call fails, in
            seconds.
        shared_memory: whether rows go through shared memory instead of HTTP. By default they do if the server
            is on this host; `transport` says whether they do.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def declare(
        self,
        name: str,
        *,
        tasks: Iterable[str] | Mapping[str, Sequence[str]] = ("train",),
        columns: Mapping[str, Any] | None = None,
        capacity_rows: int = 65_536,
        **options: Unpack[DeclareOptions],
    ) -> None:
        """Declares a partition. If it exists with an equal declaration, nothing changes.

        Args:
            name: its name.
            tasks: the tasks that must ack a row before it is freed: their names, or for each name the columns
                that a row needs to be ready for that task.
            columns: the types of known columns: names such as `"int64"`, `"list<uint32>"`, `"float32[16]"`,
                `"string"` and `"list<bfloat16>"`, or types with the Arrow PyCapsule interface. Other columns
                keep the type of their first put.
            capacity_rows: the most rows.
            **options: see `DeclareOptions`.

        Raises:
            DeclaredOtherwise: the partition exists with another declaration.
        """
        _calls.declared(self._queue, name, tasks, columns, capacity_rows, options).wait()

    def put(
        self,
        partition: str,
        group: str,
        data: Any,
        *,
        wait_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> list[int]:
        """Puts the rows of a group. The first put creates the partition if it is not declared.

        Values keep their types; nothing is cast. When this returns, the rows are as durable as the queue.

        Args:
            partition: the partition.
            group: the name of the group.
            data: a mapping (or a TensorDict) from names to columns, or rows with the Arrow PyCapsule
                interface, such as a table of pyarrow or a frame of polars. A column is an array of NumPy, a
                tensor of torch (a nested one for lists), anything with DLPack, `Ragged`, an Arrow array, or a
                list: of numbers, strings, bytes, or arrays of different lengths.
            wait_s: how long to wait for room in a full partition, in seconds. Without a limit by default.
            **options: see `PutOptions`.

        Returns:
            The handles of the rows, in their order.

        Raises:
            Deadline: there was no room in time.
            Full: the partition is full, and refuses puts.
            WrongType: a column has another type than before.
        """
        return _calls.put(self._queue, partition, group, data, wait_s, options).wait()

    def take(
        self,
        partition: str = "train",
        *,
        task: str = "train",
        wait_s: float | None = None,
        **options: Unpack[TakeOptions],
    ) -> Batch | None:
        """Takes ready rows under a lease.

        Args:
            partition: the partition.
            task: the task that takes.
            wait_s: how long to wait for rows, in seconds; 0 does not wait. Without a limit by default.
            **options: see `TakeOptions`. One of `rows`, `groups`, `tokens` and `only` is required.

        Returns:
            The rows, or `None` if no row can become ready any more: the puts have ended, and every row is
            taken.

        Raises:
            Deadline: nothing was ready in time. `Deadline` is a `TimeoutError`.
        """
        lease = _calls.taken(self._queue, partition, task, wait_s, options).wait()
        return None if lease is None else Batch(lease, self._queue, partition)

    def batches(
        self,
        partition: str = "train",
        *,
        task: str = "train",
        wait_s: float | None = None,
        **options: Unpack[TakeOptions],
    ) -> Iterator[Batch]:
        """Takes batches until the puts have ended. It has the arguments and the errors of `take`.

        Each batch is acked at the end of its own block:

            for batch in client.batches(groups=8):
                with batch:
                    train(batch)
        """
        while (batch := self.take(partition, task=task, wait_s=wait_s, **options)) is not None:
            yield batch

    def write(
        self, partition: str, rows: Sequence[int] | Array, data: Any, *, overwrite: bool = False
    ) -> None:
        """Writes columns of rows.

        Args:
            partition: the partition.
            rows: the handles of the rows.
            data: the columns, as in `put`, with one value for each handle.
            overwrite: whether values that exist are replaced. Leases that began before continue with the old
                values.

        Raises:
            ColumnExists: a row has a column already, and `overwrite` is false.
            StaleHandle: a row was freed.
        """
        _calls.written(self._queue, partition, rows, data, overwrite).wait()

    def get(
        self, partition: str, rows: Sequence[int] | Array, *, columns: Sequence[str] | None = None
    ) -> Table:
        """Reads columns of rows, leased or not; all columns by default. Nothing is leased or consumed.

        Raises:
            ColumnMissing: a row does not have a column.
            StaleHandle: a row was freed.
        """
        names = None if columns is None else _calls.strings("columns", columns)
        return Call(self._queue.get(partition, _calls.handles_of(rows), names), Table).wait()

    def find(self, partition: str, keys: Iterable[str] | None = None) -> list[KeyedRow]:
        """Finds the rows with these keys, or all rows that have keys, ordered by key.

        Raises:
            UnknownKey: no row has one of the keys.
        """
        return _calls.found(self._queue, partition, keys).wait()

    def set_tags(self, partition: str, tags: Mapping[int, Any]) -> None:
        """Replaces the tags of rows: JSON for each handle."""
        _calls.tagged(self._queue, partition, tags).wait()

    def reset(self, partition: str, task: str) -> int:
        """Makes the rows that a task has acked ready for this task again. Returns their number."""
        return Call[int](self._queue.reset(partition, task)).wait()

    def announce(self, partition: str, policy_version: int) -> None:
        """Announces a newer policy version to a partition, for takes that bound staleness.

        `Policy.announce_version` announces a version to a run, which updates its servers.
        """
        Call[None](self._queue.announce(partition, operator.index(policy_version))).wait()

    def clear(self, partition: str, rows: Sequence[int] | Array) -> None:
        """Frees rows, leased or not."""
        Call[None](self._queue.clear(partition, _calls.handles_of(rows))).wait()

    def clear_all(self, partition: str) -> int:
        """Frees all rows of a partition, leased or not. Returns their number."""
        return Call[int](self._queue.clear_all(partition)).wait()

    def end_sample(self, partition: str, sample: str) -> None:
        """Ends a sample that has rows in several puts. A group is complete when all its samples are."""
        Call[None](self._queue.end_sample(partition, sample)).wait()

    def close_groups(
        self, partition: str, *, older_than_s: float, unfinished: Literal["give", "drop"]
    ) -> list[dict[str, Any]]:
        """Closes incomplete groups of samples that began longer ago than `older_than_s` seconds.

        Args:
            partition: the partition.
            older_than_s: the least age in seconds.
            unfinished: whether their rows become ready as they are (`"give"`) or are freed (`"drop"`).

        Returns:
            The groups: `group`, `samples`, `samples_whole` and `rows` of each.
        """
        return Call(self._queue.close_groups(partition, older_than_s, unfinished), _calls.objects).wait()

    def end_of_puts(self, partition: str) -> None:
        """Ends the puts: takers see the end instead of waiting for more rows."""
        Call[None](self._queue.end_of_puts(partition)).wait()

    def status(self, partition: str, *, after: int | None = None, wait_s: float = 20.0) -> dict[str, Any]:
        """Returns the counts of a partition, as `GET /v1/partitions/NAME` does.

        Args:
            partition: the partition.
            after: a `revision` of earlier counts: wait until the partition has changed after it.
            wait_s: how long to wait for a change, in seconds, at most 20.
        """
        return _calls.status(self._queue, partition, after, wait_s).wait()

    def partitions(self) -> list[str]:
        """Returns the names of the partitions, in order."""
        return Call(self._queue.names(), _calls.names).wait()

    def inspect(self) -> dict[str, Any]:
        """Describes the queue for people: partitions, columns, rows by state, leases."""
        return Call(self._queue.inspect(), _calls.object_of).wait()
