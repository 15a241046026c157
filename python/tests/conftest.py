"""A real server, and queues of each kind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ports import free_port

import rolldock

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "secret"
#: The longest that a test waits for something that should happen.
PATIENCE_S = 600.0


def binary() -> str:
    """The command that the environment names, or else the installed command."""
    installed = Path(sys.executable).with_name("rolldock")
    found = os.environ.get("ROLLDOCK_BINARY") or (
        str(installed) if installed.exists() else shutil.which("rolldock")
    )
    assert found, "expected the command rolldock; install the wheel"
    return found


class Server:
    """A served queue in memory, over HTTP and at a socket."""

    def __init__(self, folder: Path) -> None:
        socket = folder / "queue.sock"
        command = [
            binary(),
            "queue",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--uds",
            str(socket),
            "--token",
            TOKEN,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        said = self.process.stdout.readline()
        found = re.match(r"serving a queue at (http://\S+) and (unix:\S+),", said)
        assert found, f"expected the addresses of the server, found {said!r}"
        self.http, self.unix = found.groups()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.stop()


@pytest.fixture(params=["embedded", "http", "unix"])
def client(request: pytest.FixtureRequest) -> Iterator[rolldock.Client]:
    """A client of a queue in this process, or of a server over HTTP or through its socket."""
    if request.param == "embedded":
        opened = rolldock.Client.open()
    else:
        server: Server = request.getfixturevalue("server")
        opened = connected(server, request.param)
    with opened:
        yield opened


@pytest.fixture
def queue() -> Iterator[rolldock.Client]:
    """A queue in this process."""
    with rolldock.Client.open() as opened:
        yield opened


@pytest.fixture
def partition(request: pytest.FixtureRequest) -> str:
    """The name of a partition that no other test has."""
    return re.sub(r"\W+", "-", f"{request.module.__name__}-{request.node.name}")


def connected(server: Server, way: str) -> rolldock.Client:
    if way == "http":
        return rolldock.Client(server.http, token=TOKEN, shared_memory=False)
    return rolldock.Client(server.unix)


def numbers(count: int, first: int = 0) -> dict[str, Any]:
    """Rows with consecutive numbers."""
    return {"x": np.arange(first, first + count, dtype=np.int64)}


def taken(batch: rolldock.Batch | None) -> rolldock.Batch:
    """Returns a batch that is not `None`."""
    assert batch is not None
    return batch


@pytest.fixture
def script(server: Server, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a program in Python with the server's URL and its token in the environment."""

    def start(text: str, *arguments: str) -> subprocess.Popen[str]:
        file = tmp_path / "program.py"
        file.write_text(text)
        environment = {**os.environ, "ROLLDOCK_QUEUE_TOKEN": TOKEN, "URL": server.http, "SOCKET": server.unix}
        return subprocess.Popen(
            [sys.executable, str(file), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


#: A run of three steps of four groups of eight rows, with a simulated fleet.
RECIPE = """
[model]
name = "simulated"
tokenizer = "builtin"

[data]
train = "{root}/data/arithmetic/train.jsonl"

[fleet]
max_loads_per_server = 64

[fleet.simulated]
servers = 2
time_scale = 0.02
mean_response_length = 50

[rollout]
samples_per_prompt = 8
train_batch_size = 4
gen_batch_size = 16
max_gen_batches = 20
max_response_length = 256

[reward]
scorer = "math_dapo"

[queue]
listen = "127.0.0.1:{queue}"

[policy]
mode = "sync"
listen = "127.0.0.1:{policy}"
update = {{ method = "none", pause = "none" }}

[run]
steps = 3
on_short = "error"
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a run's queue and of its policy."""
    ports = {"queue": free_port(), "policy": free_port()}
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(root=ROOT, **ports))
    command = [binary(), "run", str(recipe), "--out", str(tmp_path / "out")]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    queue, policy = (f"http://127.0.0.1:{port}" for port in (ports["queue"], ports["policy"]))
    yield queue, policy
    if process.poll() is None:
        process.terminate()
    process.wait(PATIENCE_S)
    print((tmp_path / "log").read_text())
