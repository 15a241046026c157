"""The client for asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from conftest import PATIENCE_S, TOKEN, Server

from rolldock import AsyncClient, Client, errors

Body = Callable[[AsyncClient], Awaitable[None]]


@pytest.fixture(params=["embedded", "http", "unix"])
def run(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Returns a function that runs the body of a test with a client. The test is repeated for each kind of
    client."""
    way = request.param
    server: Server | None = None if way == "embedded" else request.getfixturevalue("server")

    @asynccontextmanager
    async def opened() -> AsyncIterator[AsyncClient]:
        if server is None:
            client = AsyncClient.open()
        elif way == "http":
            client = AsyncClient(server.http, token=TOKEN, shared_memory=False)
        else:
            client = AsyncClient(server.unix)
        async with client:
            yield client

    def start(body: Body) -> None:
        async def main() -> None:
            async with opened() as client:
                await asyncio.wait_for(body(client), PATIENCE_S)

        asyncio.run(main())

    return start


Run = Callable[[Body], None]


def test_rows_are_put_taken_and_acked(run: Run, partition: str) -> None:
    async def body(client: AsyncClient) -> None:
        await client.declare(partition, tasks={"ref": [], "train": ["value"]}, capacity_rows=8)
        handles = await client.put(partition, "g", {"x": np.arange(3)}, keys=["a", "b", "c"])
        batch = await client.take(partition, task="ref", groups=1)
        assert batch is not None
        async with batch:
            assert batch["x"].tolist() == [0, 1, 2]
            await batch.renew()
            await batch.write({"value": np.ones(3)})
        await client.write(partition, handles, {"value": np.zeros(3)}, overwrite=True)
        assert [row.key for row in await client.find(partition)] == ["a", "b", "c"]
        assert (await client.get(partition, handles[:1], columns=["value"]))["value"].tolist() == [0]
        batch = await client.take(partition, groups=1)
        assert batch is not None
        await batch.ack()
        assert (await client.status(partition))["dispositions"]["acked"] == 3
        assert partition in await client.partitions()
        assert (await client.inspect())["partitions"]

    run(body)


def test_an_exception_gives_the_rows_back(run: Run, partition: str) -> None:
    async def body(client: AsyncClient) -> None:
        await client.put(partition, "g", {"x": [1]})
        for failure in (ZeroDivisionError, asyncio.CancelledError):
            batch = await client.take(partition, groups=1)
            assert batch is not None
            with pytest.raises(failure):
                async with batch:
                    raise failure
        batch = await client.take(partition, groups=1)
        assert batch is not None
        await batch.nack()
        with pytest.raises(errors.LeaseGone):
            await batch.nack()

    run(body)


def test_batches_end_with_the_puts(run: Run, partition: str) -> None:
    async def body(client: AsyncClient) -> None:
        await client.declare(partition, capacity_rows=4)

        async def produce() -> None:
            for number in range(20):
                await client.put(partition, f"g{number}", {"x": [number]})
            await client.end_of_puts(partition)

        producing = asyncio.create_task(produce())
        seen: list[int] = []
        async for batch in client.batches(partition, groups=3):
            async with batch:
                seen += batch["x"].tolist()
        await producing
        assert seen == list(range(20))

    run(body)


def test_many_waits_share_the_loop(run: Run, partition: str) -> None:
    async def body(client: AsyncClient) -> None:
        await client.declare(partition)
        waiting = [asyncio.create_task(client.take(partition, rows=1)) for _ in range(32)]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in waiting)
        for number in range(32):
            await client.put(partition, f"g{number}", {"x": [number]})
        seen = []
        for batch in await asyncio.gather(*waiting):
            assert batch is not None
            seen += batch["x"].tolist()
            await batch.ack()
        assert sorted(seen) == list(range(32))

    run(body)


def test_a_cancelled_take_loses_no_rows(run: Run, partition: str) -> None:
    async def body(client: AsyncClient) -> None:
        await client.declare(partition)
        taking = asyncio.create_task(client.take(partition, rows=1))
        await asyncio.sleep(0.1)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.take(partition, rows=1), 0.1)
        await client.put(partition, "g", {"x": [1]})
        batch = await client.take(partition, rows=1, wait_s=PATIENCE_S)
        assert batch is not None
        await batch.ack()

    run(body)


def test_the_loop_runs_while_a_call_waits(run: Run, partition: str) -> None:
    async def body(client: AsyncClient) -> None:
        await client.declare(partition)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        begun = time.monotonic()
        with pytest.raises(errors.Deadline):
            await client.take(partition, rows=1, wait_s=1.0)
        assert time.monotonic() - begun >= 1.0
        assert ticks > 5
        ticking.cancel()

    run(body)


def test_a_lease_is_renewed_while_the_block_runs(run: Run, partition: str) -> None:
    async def body(client: AsyncClient) -> None:
        await client.declare(partition, lease_ms=1_000)
        await client.put(partition, "g", {"x": [1]})
        batch = await client.take(partition, groups=1)
        assert batch is not None
        async with batch:
            await asyncio.sleep(3)
        assert (await client.status(partition))["dispositions"]["acked"] == 1

    run(body)


def test_the_rest_of_the_calls(run: Run, partition: str) -> None:
    async def body(client: AsyncClient) -> None:
        handles = await client.put(partition, "g", {"x": [1, 2]})
        await client.set_tags(partition, {handles[0]: "seen"})
        await client.announce(partition, 3)
        assert await client.reset(partition, "train") == 0
        await client.clear(partition, handles[:1])
        assert await client.clear_all(partition) == 1
        await client.put(partition, "h", {"x": [1]}, sample="s", group_size=2)
        await client.end_sample(partition, "s")
        assert len(await client.close_groups(partition, older_than_s=0, unfinished="drop")) == 1

    run(body)


def test_a_callback_may_make_calls() -> None:
    # As the finalizer of an object does that the garbage collector finds during the callback.
    client, found, is_called = Client.open(), [], threading.Event()
    client.declare("p")

    def callback() -> None:
        found.append(client.partitions())
        is_called.set()

    client._queue.names().when_done(callback)
    assert is_called.wait(PATIENCE_S)
    assert found == [["p"]]


def test_leases_are_renewed_while_a_callback_waits() -> None:
    client, may_go_on = Client.open(), threading.Event()
    client.declare("p", lease_ms=300)
    client.put("p", "g", {"x": np.arange(1)})
    batch = client.take("p", rows=1)
    assert batch is not None
    with batch:
        client._queue.names().when_done(lambda: may_go_on.wait(PATIENCE_S))
        # No call drives the runtime in the meantime, only its own thread.
        time.sleep(1)
        may_go_on.set()
    assert client.status("p")["rows"] == 0
