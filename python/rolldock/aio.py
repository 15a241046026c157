"""The client for asyncio."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rolldock import _calls, _rolldock
from rolldock._base import BaseClient
from rolldock._calls import Call, DeclareOptions, KeyedRow, PutOptions, TakeOptions
from rolldock.table import AsyncBatch, Table

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from rolldock.columns import Array


class AsyncClient(BaseClient):
    """`Client` with coroutines. A cancelled call is cancelled at the queue too.

    Args:
        url: `http://HOST:PORT`, or `unix:PATH` for the socket of a server on this host.
        token: the server's bearer token. By default the environment's `ROLLDOCK_QUEUE_TOKEN`.
        patience_s: how long a call is repeated while the server does not answer, before the call fails, in
            seconds.
        shared_memory: whether rows go through shared memory instead of HTTP. By default they do if the server
            is on this host; `transport` says whether they do.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def declare(
        self,
        name: str,
        *,
        tasks: Iterable[str] | Mapping[str, Sequence[str]] = ("train",),
        columns: Mapping[str, Any] | None = None,
        capacity_rows: int = 65_536,
        **options: Unpack[DeclareOptions],
    ) -> None:
        """As `Client.declare`."""
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
        """As `Client.put`."""
        return await _calls.put(self._queue, partition, group, data, wait_s, options)

    async def take(
        self,
        partition: str = "train",
        *,
        task: str = "train",
        wait_s: float | None = None,
        **options: Unpack[TakeOptions],
    ) -> AsyncBatch | None:
        """As `Client.take`."""
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
        """As `Client.batches`."""
        while (batch := await self.take(partition, task=task, wait_s=wait_s, **options)) is not None:
            yield batch

    async def write(
        self, partition: str, rows: Sequence[int] | Array, data: Any, *, overwrite: bool = False
    ) -> None:
        """As `Client.write`."""
        await _calls.written(self._queue, partition, rows, data, overwrite)

    async def get(
        self, partition: str, rows: Sequence[int] | Array, *, columns: Sequence[str] | None = None
    ) -> Table:
        """As `Client.get`."""
        names = None if columns is None else _calls.strings("columns", columns)
        return await Call(self._queue.get(partition, _calls.handles_of(rows), names), Table)

    async def find(self, partition: str, keys: Iterable[str] | None = None) -> list[KeyedRow]:
        """As `Client.find`."""
        return await _calls.found(self._queue, partition, keys)

    async def set_tags(self, partition: str, tags: Mapping[int, Any]) -> None:
        """As `Client.set_tags`."""
        await _calls.tagged(self._queue, partition, tags)

    async def reset(self, partition: str, task: str) -> int:
        """As `Client.reset`."""
        return await Call[int](self._queue.reset(partition, task))

    async def announce(self, partition: str, policy_version: int) -> None:
        """As `Client.announce`."""
        await Call[None](self._queue.announce(partition, operator.index(policy_version)))

    async def clear(self, partition: str, rows: Sequence[int] | Array) -> None:
        """As `Client.clear`."""
        await Call[None](self._queue.clear(partition, _calls.handles_of(rows)))

    async def clear_all(self, partition: str) -> int:
        """As `Client.clear_all`."""
        return await Call[int](self._queue.clear_all(partition))

    async def end_sample(self, partition: str, sample: str) -> None:
        """As `Client.end_sample`."""
        await Call[None](self._queue.end_sample(partition, sample))

    async def close_groups(
        self, partition: str, *, older_than_s: float, unfinished: Literal["give", "drop"]
    ) -> list[dict[str, Any]]:
        """As `Client.close_groups`."""
        return await Call(self._queue.close_groups(partition, older_than_s, unfinished), _calls.objects)

    async def end_of_puts(self, partition: str) -> None:
        """As `Client.end_of_puts`."""
        await Call[None](self._queue.end_of_puts(partition))

    async def status(
        self, partition: str, *, after: int | None = None, wait_s: float = 20.0
    ) -> dict[str, Any]:
        """As `Client.status`."""
        return await _calls.status(self._queue, partition, after, wait_s)

    async def partitions(self) -> list[str]:
        """As `Client.partitions`."""
        return await Call(self._queue.names(), _calls.names)

    async def inspect(self) -> dict[str, Any]:
        """As `Client.inspect`."""
        return await Call(self._queue.inspect(), _calls.object_of)
