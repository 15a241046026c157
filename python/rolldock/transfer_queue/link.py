"""The connections from clients in any process to the controller.

Calls and answers are pickled, so both sides prove first that they know the same key.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from dataclasses import dataclass
from multiprocessing import AuthenticationError, connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolldock.transfer_queue.controller import Controller

#: Where a controller listens: a path, or a host with a port.
Address = str | tuple[str, int]


@dataclass(frozen=True)
class Place:
    """The address of a controller, with its secret.

    Attributes:
        address: where it listens.
        secret: the secret that its clients must know.
    """

    address: Address
    secret: bytes


class Answering:
    """Answers the calls of clients, each connection in a thread of its own, until `close`.

    Args:
        controller: the controller that answers.
        address: where to listen. Port 0 means any port.
    """

    def __init__(self, controller: Controller, address: Address) -> None:
        self._controller = controller
        self._listener = connection.Listener(address)
        self.place = Place(self._listener.address, os.urandom(32))
        self._connections: set[connection.Connection] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._accept, name="transfer-queue", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                accepted = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                # A client has left before it was accepted.
                continue
            if self._is_closed:
                accepted.close()
                return
            threading.Thread(
                target=self._serve, args=(accepted,), name="transfer-queue-client", daemon=True
            ).start()

    def _serve(self, client: connection.Connection) -> None:
        with self._lock:
            if self._is_closed:
                client.close()
                return
            self._connections.add(client)
        # A client that leaves, or that does not know the secret, ends its own connection only.
        with contextlib.suppress(EOFError, OSError, AuthenticationError), client:
            connection.deliver_challenge(client, self.place.secret)
            connection.answer_challenge(client, self.place.secret)
            while True:
                name, arguments = client.recv()
                client.send(self._answer(name, arguments))
        with self._lock:
            self._connections.discard(client)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        try:
            if name.startswith("_"):
                raise AttributeError(f"the controller has no call {name!r}")
            with self._controller as controller:
                return True, getattr(controller, name)(*arguments)
        except Exception as error:
            return False, error

    def close(self) -> None:
        """Ends the connections."""
        self._is_closed = True
        # The accepting thread notices the end when a client connects.
        with contextlib.suppress(OSError):
            connection.Client(self.place.address).close()
        self._listener.close()
        with self._lock:
            for client in self._connections:
                # The thread of the connection sees that no further call can come, and closes the connection.
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(client.fileno())) as ended:
                    ended.shutdown(socket.SHUT_RDWR)


class Link:
    """Calls a controller, from any number of threads.

    Args:
        place: where the controller is.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._idle: list[connection.Connection] = []
        self._pid = os.getpid()

    def call(self, name: str, *arguments: Any) -> Any:
        """Makes a call and returns its result.

        Raises:
            ConnectionError: the controller does not answer.
            Exception: what the call raised.
        """
        if self._pid != os.getpid():
            # The connections belong to the parent process.
            self._idle, self._pid = [], os.getpid()
        try:
            server = self._idle.pop()
        except IndexError:
            server = self._connected()
        try:
            server.send((name, arguments))
            is_result, value = server.recv()
        except (EOFError, OSError) as error:
            server.close()
            raise ConnectionError(self._gone()) from error
        except BaseException:
            # Otherwise the next call would take the answer for its own.
            server.close()
            raise
        self._idle.append(server)
        if is_result:
            return value
        raise value

    def _connected(self) -> connection.Connection:
        try:
            return connection.Client(self.place.address, authkey=self.place.secret)
        except (EOFError, OSError, AuthenticationError) as error:
            raise ConnectionError(self._gone()) from error

    def _gone(self) -> str:
        return (
            f"no answer of the controller at {self.place.address}: the process that called init first has "
            "called close, or has ended"
        )

    def close(self) -> None:
        """Closes the connections of calls that have ended."""
        while self._idle:
            self._idle.pop().close()
