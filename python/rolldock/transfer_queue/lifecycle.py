"""Begins and ends the use of TransferQueue in a process."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from rolldock import errors
from rolldock.transfer_queue.client import TransferQueueClient
from rolldock.transfer_queue.config import merged, sampler_of
from rolldock.transfer_queue.controller import Controller
from rolldock.transfer_queue.link import Address, Answering, Link, Place
from rolldock.transfer_queue.server import OwnServer, connected, remove_place, store_place, stored_place
from rolldock.transfer_queue.store import Store

#: The variable of the environment that names the queue's server to processes that are started later.
URL = "ROLLDOCK_TRANSFER_QUEUE"
#: The variable that has the server's token.
TOKEN = "ROLLDOCK_TRANSFER_QUEUE_TOKEN"


@dataclass
class _Session:
    """The connection of a process to TransferQueue.

    Attributes:
        pid: the process. A process that was forked from it has a session of its own.
        config: the configuration.
        client: the client of this process.
        answering: the controller's side, in the process that called `init` first.
        server: the queue's server, in the process that started it.
    """

    pid: int
    config: DictConfig
    client: TransferQueueClient
    answering: Answering | None = None
    server: OwnServer | None = None


_session: _Session | None = None
_lock = threading.RLock()


def _renew_lock() -> None:
    # A thread that does not exist in a forked process may have held the lock.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def init(conf: Any = None) -> DictConfig:
    """Begins to use TransferQueue in this process.

    The first process that calls `init` for a queue gets the controller. Other processes become clients. If
    neither `rolldock.url` of the configuration nor `ROLLDOCK_TRANSFER_QUEUE` of the environment names a
    queue, the first process starts a server of a queue. Processes that are started later find the queue in
    their environment.

    Args:
        conf: what differs from the defaults. If there is a controller already, only `rolldock` counts.

    Returns:
        The configuration.

    Raises:
        ValueError: there is no such sampler.
    """
    global _session
    with _lock:
        if _session is not None and _session.pid == os.getpid():
            return _session.config
        config = merged(conf)
        if config.rolldock.url is None and os.environ.get(URL):
            config.rolldock.url = os.environ[URL]
            config.rolldock.token = config.rolldock.token or os.environ.get(TOKEN)
        _session = _attached(config) or _begun(config)
        return _session.config


def _attached(config: DictConfig) -> _Session | None:
    """Becomes a client of a controller, if the queue names a controller that answers."""
    if config.rolldock.url is None:
        return None
    with connected(config.rolldock) as queue:
        place = stored_place(queue)
        if place is None:
            return None
        link = Link(place)
        try:
            theirs: DictConfig = link.call("config")
        except ConnectionError:
            # The controller's process has ended. The state of the samples was in its memory.
            remove_place(queue, place)
            return None
        finally:
            link.close()
    theirs.rolldock.url, theirs.rolldock.token = config.rolldock.url, config.rolldock.token
    return _Session(os.getpid(), theirs, TransferQueueClient(_client_id(), theirs))


def _begun(config: DictConfig) -> _Session:
    """Becomes the process of the controller."""
    sampler = sampler_of(config)
    # Other processes may not have the sampler's class.
    config.controller.sampler = type(sampler).__name__
    server = None
    address: Address = (config.controller.host, 0)
    if config.rolldock.url is None:
        server = OwnServer(config.rolldock.dir)
        config.rolldock.url, config.rolldock.token = server.url, server.token
        config.rolldock.http = f"http://{server.http}"
        address = str(server.folder / "controller.sock")
    reserve = int(os.environ.get("TQ_PRE_ALLOC_SAMPLE_NUM", "0"))
    answering = Answering(Controller(sampler, config, reserve), address)
    try:
        with connected(config.rolldock) as queue:
            earlier = stored_place(queue) if server is not None else None
            if earlier is not None:
                # The directory was served before.
                remove_place(queue, earlier)
            if not store_place(queue, answering.place):
                # Another process was faster.
                answering.close()
                return _attached(config) or _begun(config)
            store = Store(queue)
            store.declare(config.backend.SimpleStorage.total_storage_size)
            # Rows of an earlier controller belong to no sample.
            store.clear_all()
        client = TransferQueueClient(_client_id(), config)
    except BaseException:
        answering.close()
        if server is not None:
            server.close()
        raise
    if server is not None:
        os.environ[URL], os.environ[TOKEN] = server.url, server.token
    atexit.register(close)
    return _Session(os.getpid(), config, client, answering, server)


def _client_id() -> str:
    return f"TransferQueueClient_{os.getpid()}"


def close() -> None:
    """Ends the use of TransferQueue in this process. In the process that called `init` first, it ends the
    controller, and the server if `init` started one. A call in any other process does not affect the
    remaining processes."""
    global _session
    with _lock:
        session, _session = _session, None
        if session is None or session.pid != os.getpid():
            return
        atexit.unregister(close)
        session.client.close()
        if session.answering is not None:
            _end(session, session.answering.place)
            session.answering.close()
        if session.server is not None:
            session.server.close()
            for name, value in ((URL, session.server.url), (TOKEN, session.server.token)):
                if os.environ.get(name) == value:
                    del os.environ[name]


def _end(session: _Session, place: Place) -> None:
    if session.server is not None:
        return
    # A server that has ended has no rows to free.
    with contextlib.suppress(errors.QueueError), connected(session.config.rolldock) as queue:
        remove_place(queue, place)
        Store(queue).clear_all()


def get_client() -> TransferQueueClient:
    """Returns the client of this process.

    Raises:
        RuntimeError: `init` was not called, and the environment names no queue.
    """
    with _lock:
        if _session is not None and _session.pid == os.getpid():
            return _session.client
        if not os.environ.get(URL):
            raise RuntimeError("TransferQueue is not initialized. Call init() first.")
        init()
        return get_client()


def is_initialized() -> bool:
    """Whether `init` was called in this process."""
    return _session is not None and _session.pid == os.getpid()


def get_metrics_endpoint() -> str | None:
    """Returns where the server's metrics are, `HOST:PORT`; `None` if `metrics.enabled` is false. A server
    with a token requires the token for its metrics, too."""
    get_client()
    assert _session is not None
    config = _session.config
    if not config.metrics.enabled or config.rolldock.http is None:
        return None
    return str(config.rolldock.http).partition("//")[2].rstrip("/")
