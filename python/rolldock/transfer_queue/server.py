"""The server of the queue that `init` starts, and the controller's `Place`, which the queue stores."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from rolldock import errors
from rolldock.client import Client
from rolldock.transfer_queue.link import Address, Place

#: The partition of the queue that has the rows of all samples.
DATA = "transfer_queue"
#: The partition of the queue whose one row says where the controller is.
CONTROLLER = "transfer_queue_controller"
#: The longest that a server may take to end, in seconds.
_END_S = 15.0
#: Ends the server when the shell's standard input ends. The input also ends when the parent process dies.
_SHELL = '"$@" & server=$!; exec >&-; read -r _; kill $server; wait $server'


def binary() -> str:
    """Returns the path of the command `rolldock`.

    It is `ROLLDOCK_BINARY` of the environment, the binary beside Python, or the one in `PATH`.

    Raises:
        FileNotFoundError: the command was not found.
    """
    beside = Path(sys.executable).with_name("rolldock")
    found = os.environ.get("ROLLDOCK_BINARY") or (
        str(beside) if beside.exists() else shutil.which("rolldock")
    )
    if not found:
        raise FileNotFoundError(
            "expected the command rolldock of the wheel beside Python or in PATH; install the wheel, or name "
            "a server of a queue in rolldock.url of the configuration"
        )
    return found


class OwnServer:
    """A server of a queue for the processes of this host. It ends with `close`, or with this process.

    Args:
        dir: the directory of the queue; `None` for a queue in memory.

    Raises:
        RuntimeError: the server did not start.
    """

    def __init__(self, dir: str | None) -> None:
        command = [binary(), "queue", "serve", "--listen", "127.0.0.1:0"]
        command += [] if dir is None else ["--dir", dir]
        self.folder = Path(tempfile.mkdtemp(prefix="rolldock-"))
        self.token = secrets.token_urlsafe()
        socket = self.folder / "queue.sock"
        command += ["--uds", str(socket)]
        self._process = subprocess.Popen(
            ["sh", "-c", _SHELL, "rolldock", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "ROLLDOCK_QUEUE_TOKEN": self.token},
            # Ctrl-C reaches only this process, which then calls close.
            start_new_session=True,
        )
        said = _pipe(self._process.stdout).readline().decode()
        found = re.match(rf"serving a queue at http://(\S+) and (unix:{re.escape(str(socket))}),", said)
        if found is None:
            self.close()
            raise RuntimeError(
                f"expected the addresses of the queue's server, found {said!r}; its log says why"
            )
        #: Where clients of this host reach it, through shared memory.
        self.url = found[2]
        #: Its HTTP server, `HOST:PORT`.
        self.http = found[1]

    def close(self) -> None:
        """Ends the server."""
        # Closing the pipe is not enough if a forked process has it open. A line ends the server, too.
        with contextlib.suppress(BrokenPipeError), _pipe(self._process.stdin) as stdin:
            stdin.write(b"\n")
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        _pipe(self._process.stdout).close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("expected a pipe to the queue's server")
    return pipe


def connected(options: Any) -> Client:
    """Returns a client of the server that a configuration names in `rolldock`."""
    # The permissions of a socket decide who may use it.
    return Client(options.url, token=None if options.url.startswith("unix:") else options.token)


def stored_place(client: Client) -> Place | None:
    """Returns the `Place` of the controller that a queue stores; `None` if the queue stores none."""
    try:
        row = client.find(CONTROLLER, ["controller"])[0].handle
        table = client.get(CONTROLLER, [row])
    except (errors.UnknownPartition, errors.UnknownKey, errors.StaleHandle):
        return None
    host, port, secret = table["host"][0], int(table["port"][0]), table["secret"][0]
    address: Address = (host, port) if port else host
    return Place(address, secret)


def store_place(client: Client, place: Place) -> bool:
    """Stores the `Place` of a controller in a queue. Returns false if the queue stores one already."""
    client.declare(CONTROLLER, tasks=("none",), capacity_rows=16)
    host, port = (place.address, 0) if isinstance(place.address, str) else place.address
    row = {"host": [host], "port": [port], "secret": [place.secret]}
    try:
        client.put(CONTROLLER, secrets.token_hex(), row, keys=["controller"], wait_s=10)
    except errors.KeyExists:
        return False
    return True


def remove_place(client: Client, place: Place) -> None:
    """Removes `place` from a queue. Does nothing if the queue stores another `Place`, or none."""
    if stored_place(client) == place:
        with contextlib.suppress(errors.UnknownKey, errors.StaleHandle):
            client.clear(CONTROLLER, [client.find(CONTROLLER, ["controller"])[0].handle])
