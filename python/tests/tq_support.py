"""Fixtures of the tests of `rolldock.transfer_queue`, which are skipped where its packages are absent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import binary

NEEDED = "rolldock.transfer_queue needs this package; install rolldock[transfer_queue]"
torch = pytest.importorskip("torch", reason=NEEDED)
tensordict = pytest.importorskip("tensordict", reason=NEEDED)
pytest.importorskip("omegaconf", reason=NEEDED)

import rolldock.transfer_queue as tq  # noqa: E402

POLLING = {"controller": {"polling_mode": True}}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ROLLDOCK_BINARY", str(Path(binary()).resolve()))
    yield
    tq.close()


@pytest.fixture
def client() -> Any:
    tq.init(POLLING)
    return tq.get_client()


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """The client of a server that all tests of a module share. Each test has partitions of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLDOCK_BINARY", str(Path(binary()).resolve()))
        tq.init(POLLING)
        yield tq.get_client()
        tq.close()


@pytest.fixture(params=["sync", "asyncio"])
def call(request: pytest.FixtureRequest, shared: Any) -> Callable[..., Any]:
    """Makes a call by name in one of its two forms: of the module, or else of the client."""

    def made(name: str, *arguments: Any, **named: Any) -> Any:
        of = tq if hasattr(tq, name) else shared
        if request.param == "sync":
            return getattr(of, name)(*arguments, **named)

        async def main() -> Any:
            return await getattr(of, f"async_{name}")(*arguments, **named)

        return asyncio.run(main())

    return made


def data(**fields: Any) -> Any:
    return tensordict.TensorDict(fields, batch_size=len(next(iter(fields.values()))))


def ids(first: int, rows: int = 2) -> Any:
    return torch.arange(first, first + 2 * rows).reshape(rows, 2)


def lists(value: Any) -> list[Any]:
    return [one.tolist() for one in value.unbind()]
