"""Runs TransferQueue's own tests and tutorials over `rolldock.transfer_queue`.

`import transfer_queue` gives our modules, and `import ray` gives a small stand-in for what those tests ask of
Ray: tasks in processes that are forked, and the controller's actor. pytest loads this file as a plugin, and
`python stand_in.py FILE` runs a tutorial.
"""

from __future__ import annotations

import importlib
import multiprocessing
import pkgutil
import runpy
import sys
import time
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import rolldock.transfer_queue as tq

#: The longest that a task may take, in seconds.
TASK_S = 120.0
#: The longest sleep of a tutorial, in seconds. Tutorials sleep only to simulate work.
SLEEP_S = 0.2


class Task:
    """A call in a process of its own."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        fork = multiprocessing.get_context("fork")
        self._answer, to_answer = fork.Pipe(duplex=False)

        def run() -> None:
            try:
                to_answer.send((True, call(*args, **kwargs)))
            except Exception as error:
                to_answer.send((False, repr(error)))

        self._process = fork.Process(target=run)
        self._process.start()
        to_answer.close()

    def result(self, timeout: float | None) -> Any:
        if not self._answer.poll(timeout or TASK_S):
            self._process.kill()
            raise TimeoutError("expected the result of a task in time")
        is_result, value = self._answer.recv()
        self._process.join()
        if not is_result:
            raise RuntimeError(value)
        return value


class Remote:
    """A function whose `remote` starts a task."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def remote(self, *args: Any, **kwargs: Any) -> Task:
        return Task(self._call, args, kwargs)


def remote(*args: Any, **_: Any) -> Any:
    """The decorator, with or without options."""
    return Remote(args[0]) if args else Remote


def get(what: Any, timeout: float | None = None) -> Any:
    if isinstance(what, list):
        return [get(one, timeout) for one in what]
    return what.result(timeout) if isinstance(what, Task) else what


def snapshot(partition: str) -> SimpleNamespace | None:
    """The parts of the controller's partition that the tests read, as clients see them."""
    client = tq.get_client()
    if partition not in client.get_partition_list():
        return None
    whole = client.get_meta(None, 0, partition, mode="force_fetch")
    tags = client.kv_list(partition)[partition]
    keys = {key: client.kv_retrieve_meta(key, partition).global_indexes[0] for key in tags}
    status = torch.zeros(max(whole.global_indexes, default=-1) + 1, len(whole.field_names), dtype=torch.int8)
    for column, name in enumerate(whole.field_names):
        indexes, has = client.get_production_status([name], partition)
        status[indexes, column] = has[:, 0]
    return SimpleNamespace(
        keys_mapping=keys,
        global_indexes=set(whole.global_indexes),
        custom_meta=dict(zip(whole.global_indexes, whole.custom_meta, strict=True)),
        field_name_mapping={name: column for column, name in enumerate(whole.field_names)},
        production_status=status,
    )


class Method:
    """A method of an actor. Its result is available at once."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


def get_actor(name: str, namespace: str | None = None) -> SimpleNamespace:
    if name != "TransferQueueController":
        raise ValueError(f"no actor {name} in {namespace}")
    return SimpleNamespace(
        list_partitions=Method(lambda: tq.get_client().get_partition_list()),
        clear_partition=Method(lambda partition: tq.get_client().clear_partition(partition)),
        get_partition_snapshot=Method(snapshot),
        get_config=Method(tq.init),
    )


def install() -> None:
    for module in pkgutil.walk_packages(tq.__path__, f"{tq.__name__}."):
        importlib.import_module(module.name)
    for name, module in list(sys.modules.items()):
        if name == tq.__name__ or name.startswith(f"{tq.__name__}."):
            sys.modules[name.removeprefix("rolldock.")] = module
    ray = types.ModuleType("ray")
    state = {"is_initialized": False}
    vars(ray).update(
        init=lambda **_: state.update(is_initialized=True),
        shutdown=lambda: state.update(is_initialized=False),
        is_initialized=lambda: state["is_initialized"],
        get=get,
        get_actor=get_actor,
        remote=remote,
    )
    sys.modules["ray"] = ray


install()

if __name__ == "__main__":
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, SLEEP_S))
    tutorial = sys.argv[1]
    sys.argv = [tutorial]
    runpy.run_path(tutorial, run_name="__main__")
