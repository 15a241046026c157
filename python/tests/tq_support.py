"""What the tests of `rolldock.transfer_queue` share. They are skipped where its packages are absent."""

from __future__ import annotations

from collections.abc import Iterator
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


def data(**fields: Any) -> Any:
    return tensordict.TensorDict(fields, batch_size=len(next(iter(fields.values()))))


def ids(first: int, rows: int = 2) -> Any:
    return torch.arange(first, first + 2 * rows).reshape(rows, 2)


def lists(value: Any) -> list[Any]:
    return [one.tolist() for one in value.unbind()]
