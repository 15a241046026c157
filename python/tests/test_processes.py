"""Signals, forks, spawned processes, threads and the GIL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S, TOKEN, Server, connected

import rolldock
from rolldock import Client, errors

Script = Callable[..., "subprocess.Popen[str]"]

WAIT = """
import os, rolldock
client = rolldock.Client(os.environ["URL"]) if "{place}" == "http" else rolldock.Client.open()
client.declare("interrupted", capacity_rows=1)
{before}
print("waiting", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", len(client.partitions()) > 0, flush=True)
"""


@pytest.mark.parametrize("place", ["http", "embedded"])
@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("", 'client.take("interrupted", rows=1)'),
        ('client.put("interrupted", "a", {"x": [1]})', 'client.put("interrupted", "b", {"x": [1]})'),
    ],
)
def test_ctrl_c_interrupts_a_wait(script: Script, server: Server, place: str, before: str, call: str) -> None:
    program = script(WAIT.replace("{place}", place).replace("{before}", before).replace("{call}", call))
    assert program.stdout
    assert program.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    begun = time.monotonic()
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=PATIENCE_S)
    assert out == "interrupted True\n", err
    # Without Ctrl-C, the call would wait until `communicate` times out.
    assert time.monotonic() - begun < PATIENCE_S / 2
    if place == "http":
        Client(server.http, token=TOKEN).clear_all("interrupted")


def test_the_gil_is_free_while_a_call_waits(client: Client, partition: str) -> None:
    client.declare(partition)

    def wait() -> None:
        with pytest.raises(errors.Deadline):
            client.take(partition, rows=1, wait_s=1.0)

    waiting = [threading.Thread(target=wait) for _ in range(8)]
    for thread in waiting:
        thread.start()
    counted = 0
    while any(thread.is_alive() for thread in waiting):
        counted += 1
    # If a waiting thread held the GIL, this thread would count only for a moment at the end.
    assert counted > 1_000


def in_a_child(run: Callable[[], str]) -> str:
    """Calls a function in a forked child. Returns its result, or the type and message of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = run()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        said = answers.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ["http", "unix"])
def test_a_client_works_in_a_forked_child(server: Server, partition: str, way: str) -> None:
    client = Client(server.http, token=TOKEN) if way == "http" else Client(server.unix)
    client.put(partition, "parent", {"x": [1]})

    def child() -> str:
        client.put(partition, "child", {"x": [2]})
        with client.take(partition, groups=8) as batch:  # type: ignore[union-attr]
            return str(batch["x"].tolist())

    assert in_a_child(child) == "[1, 2]"
    assert client.status(partition)["rows"] == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ["http", "unix"])
def test_a_lease_stays_with_the_parent_of_a_fork(server: Server, partition: str, way: str) -> None:
    client = Client(server.http, token=TOKEN) if way == "http" else Client(server.unix)
    client.put(partition, "g", {"x": [1]})
    held = [client.take(partition, groups=1)]

    def child() -> str:
        batch = held.pop()
        assert batch is not None
        with pytest.raises(errors.Forked):
            batch.ack()
        # Dropping the batch must not give the parent's rows back.
        del batch
        time.sleep(0.2)
        return "done"

    assert in_a_child(child) == "done"
    (batch,) = held
    assert batch is not None
    batch.ack()
    assert client.status(partition)["dispositions"]["acked"] == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_embedded_queue_stays_with_its_process(queue: Client) -> None:
    queue.put("p", "g", {"x": [1]})
    said = in_a_child(lambda: str(queue.status("p")))
    assert said.startswith("Forked: an embedded queue belongs to the parent process"), said
    assert in_a_child(lambda: "rows: " + str(put_in_new_queue())) == "rows: 1"
    assert queue.status("p")["rows"] == 1


def put_in_new_queue() -> int:
    with Client.open() as queue:
        queue.put("p", "g", {"x": np.arange(1)})
        rows: int = queue.status("p")["rows"]
        return rows


SPAWN = """
import multiprocessing, os, rolldock

def work(client, number):
    client.put("spawned", f"g{number}", {"x": [number]})

if __name__ == "__main__":
    client = rolldock.Client(os.environ["URL"])
    client.declare("spawned")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(work, [(client, number) for number in range(4)])
    with client.take("spawned", groups=4, at_least=4) as batch:
        print(sorted(batch["x"].tolist()))
"""


def test_a_client_is_given_to_spawned_processes(script: Script) -> None:
    out, err = script(SPAWN).communicate(timeout=PATIENCE_S)
    assert out == "[0, 1, 2, 3]\n", err


KILLED = """
import os, signal, rolldock
client = rolldock.Client(os.environ["SOCKET"])
batch = client.take("killed", groups=1)
print("taken", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rows_of_a_killed_process_come_back(script: Script, server: Server) -> None:
    client = Client(server.unix)
    client.put("killed", "g", {"x": [1]})
    assert script(KILLED).communicate(timeout=PATIENCE_S)[0] == "taken\n"
    with client.take("killed", groups=1, wait_s=PATIENCE_S) as batch:  # type: ignore[union-attr]
        assert len(batch) == 1


QUIT = """
import os, threading, rolldock
client = rolldock.Client(os.environ["URL"])
client.declare("quit")
threading.Thread(target=lambda: client.take("quit", rows=1), daemon=True).start()
batch = None
client.put("quit-rows", "g", {"x": [1]})
batch = client.take("quit-rows", rows=1)
batch.__enter__()
print("end")
"""


def test_a_program_ends_while_its_threads_wait(script: Script) -> None:
    program = script(QUIT)
    out, err = program.communicate(timeout=PATIENCE_S)
    assert (out, program.returncode) == ("end\n", 0), err


COUNT_THREADS = """
import asyncio, os, pathlib, rolldock
def threads():
    names = [(task / "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()]
    return sorted(name for name in names if name.startswith("rolldock"))
client = rolldock.Client(os.environ["URL"], shared_memory=False)
client.declare("threads")
for number in range(30):
    client.put("threads", f"{number}", {"x": [number]})
    client.take("threads", groups=1).ack()
print(threads(), flush=True)
async def await_a_call():
    client = rolldock.AsyncClient(os.environ["URL"], shared_memory=False)
    await client.clear_all("threads")
asyncio.run(await_a_call())
print(threads(), flush=True)
"""


def test_calls_run_in_the_threads_that_make_them(script: Script) -> None:
    out, err = script(COUNT_THREADS).communicate(timeout=PATIENCE_S)
    # The system cuts names off after 15 characters. The thread for callbacks begins with the first call that
    # is awaited.
    steward = "'rolldock stewar'"
    assert out.splitlines() == [f"[{steward}]", f"['rolldock callba', {steward}]"], err


def test_clients_of_a_server_share_its_connections(server: Server) -> None:
    def sockets() -> int:
        links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
        return sum("socket:" in link for link in links)

    first = Client(server.http, token=TOKEN)
    first.partitions()
    before = sockets()
    others = [Client(server.http, token=TOKEN) for _ in range(16)]
    for other in others:
        other.partitions()
    assert sockets() <= before


def test_importing_needs_no_numpy(tmp_path: Path) -> None:
    program = (
        "import sys, rolldock; print([name for name in ('numpy', 'torch', 'pyarrow') if name in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert out.stdout == "[]\n"
    assert rolldock.__version__


def test_only_numbers_need_numpy(tmp_path: Path) -> None:
    program = """
import sys, rolldock
sys.modules["numpy"] = None
client = rolldock.Client.open()
client.put("train", "g", {"text": ["a", "b"], "octets": [b"x", None]})
rows = client.take("train", groups=1)
client.put("train", "h", rows)
try:
    client.put("train", "i", {"text": [1]})
except ImportError as error:
    print(len(rows), error)
"""
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert out.stdout.startswith("2 import of numpy halted")


SLOW_TO_RETURN = """
import asyncio, os, time
from rolldock import AsyncClient

async def main():
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe

    def wake_and_stay(*arguments):
        wake(*arguments)
        time.sleep(0.5)

    loop.call_soon_threadsafe = wake_and_stay
    await AsyncClient(os.environ["URL"]).partitions()

asyncio.run(main())
"""


def test_the_interpreter_ends_while_a_thread_of_the_runtime_is_in_python(script: Script) -> None:
    program = script(SLOW_TO_RETURN)
    _, err = program.communicate(timeout=PATIENCE_S)
    assert (program.returncode, err) == (0, "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ["http", "unix"])
def test_a_put_of_a_forked_child_is_not_taken_for_a_put_of_its_parent(
    server: Server, partition: str, way: str
) -> None:
    client = Client(server.http, token=TOKEN) if way == "http" else Client(server.unix)
    client.put(partition, "before", {"x": [1]})

    def child() -> str:
        client.put(partition, "child", {"x": [2]})
        return "done"

    assert in_a_child(child) == "done"
    client.put(partition, "parent", {"x": [3]})
    assert client.status(partition)["rows"] == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forks_succeed_while_threads_put(server: Server, partition: str) -> None:
    """At each fork, the other threads are at a random place of a call, also where they drop arrays."""
    client = Client(server.unix)
    is_over = threading.Event()

    def put(name: str) -> None:
        number = 0
        while not is_over.is_set():
            client.put(partition, f"{name}-{number}", {f"x{index}": np.zeros(1) for index in range(20)})
            with client.take(partition, rows=1):  # type: ignore[union-attr]
                number += 1

    threads = [threading.Thread(target=put, args=(str(index),)) for index in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            end = time.perf_counter() + 2e-3 * np.random.random()
            while time.perf_counter() < end:
                pass
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(int(PATIENCE_S))
                    put_in_new_queue()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("way", ["embedded", "http", "unix"])
def test_an_array_is_released_after_its_put(server: Server, partition: str, way: str) -> None:
    class Array(np.ndarray[Any, Any]):
        pass

    with Client.open() if way == "embedded" else connected(server, way) as client:
        array = np.zeros(100).view(Array)
        known = weakref.ref(array)
        client.put(partition, "g", {"x": array})
        del array
        client.status(partition)
        assert known() is None
