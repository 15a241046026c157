"""Shared memory that a client on the server's host chooses by itself."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from conftest import TOKEN, Server, numbers, taken

import rolldock


def test_a_client_on_the_host_of_its_server_uses_shared_memory(server: Server, partition: str) -> None:
    with rolldock.Client(server.http, token=TOKEN) as client:
        assert client.transport is None
        client.put(partition, "a", numbers(20_000))
        assert client.transport == "shared_memory"
        with taken(client.take(partition, groups=1)) as batch:
            assert batch["x"].sum() == sum(range(20_000))
        again = pickle.loads(pickle.dumps(client))
        assert again.status(partition)["rows"] == 0
        assert again.transport == "shared_memory"


def test_each_way_can_be_asked_for(server: Server) -> None:
    for shared_memory, transport in ((False, "http"), (True, "shared_memory")):
        client = rolldock.Client(server.http, token=TOKEN, shared_memory=shared_memory)
        client.partitions()
        assert client.transport == transport
    with rolldock.Client.open() as embedded:
        assert embedded.transport == "embedded"
    assert rolldock.Client(server.unix).transport == "shared_memory"
    with pytest.raises(ValueError, match="found a socket"):
        rolldock.Client(server.unix, shared_memory=False)


def test_a_wrong_token_is_refused_though_the_server_is_on_this_host(server: Server) -> None:
    for shared_memory in (None, False):
        client = rolldock.Client(server.http, token="wrong", shared_memory=shared_memory)
        with pytest.raises(rolldock.errors.Unauthorized):
            client.partitions()
        assert client.transport in (None, "http")


def test_the_client_for_asyncio_chooses_too(server: Server, partition: str) -> None:
    async def use() -> str | None:
        async with rolldock.AsyncClient(server.http, token=TOKEN) as client:
            await client.put(partition, "a", numbers(4))
            batch = await client.take(partition, groups=1)
            assert batch is not None
            async with batch:
                assert batch["x"].tolist() == [0, 1, 2, 3]
            return client.transport

    assert asyncio.run(use()) == "shared_memory"
