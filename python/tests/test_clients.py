"""Clients that are shared by threads, pickled, closed or refused, and clients of directories."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S, TOKEN, Server, binary, connected, numbers, taken
from ports import free_port

from rolldock import AsyncBatch, AsyncClient, AsyncPolicy, Batch, Client, Policy, errors


def public(of: type) -> dict[str, Any]:
    return {name: value for name, value in vars(of).items() if inspect.isfunction(value) and name[0] != "_"}


@pytest.mark.parametrize(
    ("sync", "awaited"), [(Client, AsyncClient), (Batch, AsyncBatch), (Policy, AsyncPolicy)]
)
def test_the_classes_for_asyncio_have_the_same_calls(sync: type, awaited: type) -> None:
    assert public(sync).keys() == public(awaited).keys()
    for name, call in public(sync).items():
        other = public(awaited)[name]
        assert inspect.signature(call).parameters == inspect.signature(other).parameters, name
        assert inspect.iscoroutinefunction(other) or inspect.isasyncgenfunction(other), name
        assert len(call.__doc__) > 20, name
        assert other.__doc__ == f"As `{sync.__name__}.{name}`.", name


def test_threads_share_a_client(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=4)
    seen: list[int] = []

    def produce(first: int) -> None:
        for number in range(first, first + 25):
            client.put(partition, f"g{number}", numbers(1, number))

    def consume() -> None:
        for batch in client.batches(partition, groups=3):
            with batch:
                seen.extend(batch["x"].tolist())

    consumers = [threading.Thread(target=consume) for _ in range(3)]
    producers = [threading.Thread(target=produce, args=(first,)) for first in (0, 25, 50, 75)]
    for thread in consumers + producers:
        thread.start()
    for thread in producers:
        thread.join(PATIENCE_S)
    client.end_of_puts(partition)
    for thread in consumers:
        thread.join(PATIENCE_S)
    assert sorted(seen) == list(range(100))


def test_a_closed_client_says_so(client: Client, partition: str) -> None:
    client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.status(partition)


@pytest.mark.parametrize("way", ["http", "unix"])
def test_a_client_of_a_server_can_be_pickled(server: Server, partition: str, way: str) -> None:
    client = connected(server, way)
    client.put(partition, "g", numbers(1))
    assert pickle.loads(pickle.dumps(client)).status(partition)["rows"] == 1


def test_an_embedded_queue_cannot_be_pickled(queue: Client) -> None:
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(queue)


def test_a_directory_keeps_its_rows(tmp_path: Any) -> None:
    with Client.open(tmp_path / "queue") as queue:
        queue.put("p", "g", {"x": np.arange(3), "ids": [np.arange(2), np.arange(0), np.arange(1)]})
        with pytest.raises(errors.InUse):
            Client.open(tmp_path / "queue")
    with Client.open(tmp_path / "queue") as queue:
        batch = taken(queue.take("p", groups=1))
        assert batch["x"].tolist() == [0, 1, 2]
        assert batch["ids"].lengths.tolist() == [2, 0, 1]
        batch.ack()
        del batch


def test_a_wrong_token_is_refused(server: Server) -> None:
    with pytest.raises(errors.Unauthorized):
        Client(server.http, token="wrong").partitions()
    with pytest.raises(ValueError, match="permissions decide"):
        Client(server.unix, token=TOKEN)


@pytest.mark.parametrize("call", ["ack", "nack"])
def test_a_lease_can_be_ended_when_its_server_is_back(tmp_path: Path, call: str) -> None:
    port = free_port()

    def serve() -> subprocess.Popen[str]:
        command = [binary(), "queue", "serve", "--dir", str(tmp_path), "--listen", f"127.0.0.1:{port}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert "serving" in process.stdout.readline()
        return process

    server = serve()
    client = Client(f"http://127.0.0.1:{port}", patience_s=0.5, shared_memory=False)
    try:
        client.put("p", "g", numbers(2))
        batch = taken(client.take("p", rows=2))
        server.kill()
        server.wait(PATIENCE_S)
        with pytest.raises(errors.Unreachable):
            getattr(batch, call)()
        server = serve()
        getattr(batch, call)()
        status = client.status("p")
        assert (status["rows"], status["leases"]) == (0 if call == "ack" else 2, 0)
        with pytest.raises(errors.LeaseGone):
            batch.ack()
    finally:
        server.kill()
        server.wait(PATIENCE_S)


def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(errors.Unreachable) as raised:
        Client("http://127.0.0.1:9", patience_s=0).partitions()
    assert isinstance(raised.value, errors.RetryableError)
