"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rolldock import _calls, _rolldock
from rolldock._calls import Call, DeclareOptions, KeyedRow, PutOptions, TakeOptions
from rolldock.client import _names, _object, _objects
from rolldock.table import AsyncBatch, Table

if TYPE_CHECKING:
    from os import PathLike

    from typing_extensions import Self, Unpack

    from rolldock.columns import Array


class AsyncClient:
    """`Client` with coroutines. A cancelled call is cancelled at the queue too.

    A client may be used by any number of threads. All clients of a process use one pool of connections for each
    server. After a fork the child's client makes connections of its own; an embedded queue stays with the process
    that opened it (`Forked`). A client of a server can be pickled, so it can be given to a spawned process.

    Args:
        url: `http://HOST:PORT`, or `unix:PATH` for a server on this host, through shared memory.
        token: the server's bearer token. By default the environment's `ROLLDOCK_QUEUE_TOKEN`.
        patience_s: how long a server that is away is tried again before a call fails, in seconds.
    """

    _queue: _rolldock.Queue

    def __init__(self, url: str, *, token: str | None = None, patience_s: float = 30.0) -> None:
        self._queue = _calls.connected(url, token, patience_s)
        self._server: tuple[str, str | None, float] | None = (url, token, patience_s)

    @classmethod
    def open(
        cls, dir: str | PathLike[str] | None = None, *, durability: Literal["none", "os", "fsync"] = "fsync"
    ) -> Self:
        """Opens a queue in this process: in memory, or in a directory.

        Args:
            dir: the directory, made if absent: `queue` in the directory of a run. One process at a time has it.
            durability: what an acknowledged put survives, where its partition does not say: nothing, the death of
                the process (`"os"`), or the death of the machine (`"fsync"`).

        Raises:
            InUse: another process has the directory.
        """
        client = cls.__new__(cls)
        client._queue = _rolldock.Queue.open(dir, durability)
        client._server = None
        return client

    def close(self) -> None:
        """Closes an embedded queue, which makes its puts durable, or leaves a server. Leases stay as they are."""
        self._queue.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._server is None:
            raise TypeError("an embedded queue belongs to its process; serve it, and pickle a client of its URL")
        return _reopened, (type(self), *self._server)

    async def declare(
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
            tasks: who must ack a row before it is freed: names, or for each name the columns that a row needs to be
                ready for it.
            columns: the types of known columns: names such as `"int64"`, `"list<uint32>"`, `"float32[16]"`,
                `"string"` and `"list<bfloat16>"`, or types with the Arrow PyCapsule interface. Other columns keep
                the type of their first put.
            capacity_rows: the most rows.
            **options: see `DeclareOptions`.

        Raises:
            DeclaredOtherwise: the partition exists with another declaration.
        """
        await _calls.declared(self._queue, name, tasks, columns, capacity_rows, options)

    async def put(
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
            data: a mapping (or a TensorDict) from names to columns, or rows with the Arrow PyCapsule interface, such
                as a table of pyarrow or a frame of polars. A column is an array of NumPy, a tensor of torch (a nested
                one for lists), anything with DLPack, `Ragged`, an Arrow array, or a list: of numbers, strings, bytes,
                or arrays of different lengths.
            wait_s: how long to wait for room in a full partition, in seconds. Without a limit by default.
            **options: see `PutOptions`.

        Returns:
            The handles of the rows, in their order.

        Raises:
            Deadline: there was no room in time.
            Full: the partition is full, and refuses puts.
            WrongType: a column has another type than before.
        """
        return await _calls.put(self._queue, partition, group, data, wait_s, options)

    async def take(
        self,
        partition: str = "train",
        *,
        task: str = "train",
        wait_s: float | None = None,
        **options: Unpack[TakeOptions],
    ) -> AsyncBatch | None:
        """Takes ready rows under a lease.

        Args:
            partition: the partition.
            task: the task that takes.
            wait_s: how long to wait for rows, in seconds; 0 to look only. Without a limit by default.
            **options: see `TakeOptions`. One of `rows`, `groups`, `tokens` and `only` is required.

        Returns:
            The rows, or `None` if no row can become ready any more: the puts have ended, and every row is taken.

        Raises:
            Deadline: nothing was ready in time. It is a `TimeoutError`.
        """
        pending = _calls.taken(self._queue, partition, task, wait_s, options)
        lease = await Call[_rolldock.Lease | None](pending)
        return None if lease is None else AsyncBatch(lease, self._queue, partition)

    async def batches(
        self,
        partition: str = "train",
        *,
        task: str = "train",
        wait_s: float | None = None,
        **options: Unpack[TakeOptions],
    ) -> AsyncIterator[AsyncBatch]:
        """Takes batches until the puts have ended. Arguments and errors are those of `take`.

        Each batch is acked at the end of its own block:

            async for batch in client.batches(groups=8):
                async with batch:
                    await train(batch)
        """
        while (batch := await self.take(partition, task=task, wait_s=wait_s, **options)) is not None:
            yield batch

    async def write(self, partition: str, rows: Sequence[int] | Array, data: Any, *, overwrite: bool = False) -> None:
        """Writes columns of rows.

        Args:
            partition: the partition.
            rows: the handles of the rows.
            data: the columns, as in `put`, with one value for each handle.
            overwrite: whether values that exist are replaced. Leases that began before go on with the old ones.

        Raises:
            ColumnExists: a row has a column already, and `overwrite` is false.
            StaleHandle: a row was freed.
        """
        await _calls.written(self._queue, partition, rows, data, overwrite)

    async def get(self, partition: str, rows: Sequence[int] | Array, *, columns: Sequence[str] | None = None) -> Table:
        """Reads columns of rows, leased or not; all columns by default. Nothing is leased or consumed.

        Raises:
            ColumnMissing: a row does not have a column.
            StaleHandle: a row was freed.
        """
        names = None if columns is None else list(columns)
        return await Call(self._queue.get(partition, _calls.handles_of(rows), names), Table)

    async def find(self, partition: str, keys: Iterable[str] | None = None) -> list[KeyedRow]:
        """Finds the rows with these keys, or all rows that have keys, ordered by key.

        Raises:
            UnknownKey: no row has a key.
        """
        return await _calls.found(self._queue, partition, keys)

    async def set_tags(self, partition: str, tags: Mapping[int, Any]) -> None:
        """Replaces the tags of rows: JSON for each handle."""
        await _calls.tagged(self._queue, partition, tags)

    async def reset(self, partition: str, task: str) -> int:
        """Makes the rows that a task has acked ready for it again. Returns their number."""
        return await Call[int](self._queue.reset(partition, task))

    async def announce(self, partition: str, policy_version: int) -> None:
        """Announces a newer policy version to a partition, for takes that bound staleness.

        `Policy.announce_version` announces a version to a run, which updates its servers.
        """
        await Call[None](self._queue.announce(partition, policy_version))

    async def clear(self, partition: str, rows: Sequence[int] | Array) -> None:
        """Frees rows, leased or not."""
        await Call[None](self._queue.clear(partition, _calls.handles_of(rows)))

    async def clear_all(self, partition: str) -> int:
        """Frees all rows of a partition, leased or not. Returns their number."""
        return await Call[int](self._queue.clear_all(partition))

    async def end_sample(self, partition: str, sample: str) -> None:
        """Ends a sample that has rows in several puts. The group is complete when all of its samples are."""
        await Call[None](self._queue.end_sample(partition, sample))

    async def close_groups(
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
        return await Call(self._queue.close_groups(partition, older_than_s, unfinished), _objects)

    async def end_of_puts(self, partition: str) -> None:
        """Ends the puts: takers see the end instead of waiting for more rows."""
        await Call[None](self._queue.end_of_puts(partition))

    async def status(self, partition: str, *, after: int | None = None, wait_s: float = 20.0) -> dict[str, Any]:
        """Returns the counts of a partition, as `GET /v1/partitions/NAME` does.

        Args:
            partition: the partition.
            after: a `revision` of earlier counts: wait until the partition has changed after it.
            wait_s: how long to wait for a change, in seconds, at most 20.
        """
        return await _calls.status(self._queue, partition, after, wait_s)

    async def partitions(self) -> list[str]:
        """Returns the names of the partitions, in order."""
        return await Call(self._queue.names(), _names)

    async def inspect(self) -> dict[str, Any]:
        """Describes the queue for people: partitions, columns, rows by state, leases."""
        return await Call(self._queue.inspect(), _object)


def _reopened(of: type[AsyncClient], url: str, token: str | None, patience_s: float) -> AsyncClient:
    return of(url, token=token, patience_s=patience_s)
