"""Helpers for tests of data loaders. Tests that import this module are skipped if torch is not installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from conftest import PATIENCE_S

from rolldock import Client

torch = pytest.importorskip("torch")

from rolldock.torch import Fields, StreamingDataLoader, StreamingDataset, TrainBatch  # noqa: E402

WITH_ID = Fields(extra=("id",))


def loader(client: Client, partition: str = "p", *, groups: int = 2, **options: Any) -> StreamingDataLoader:
    of_loader = {name: options.pop(name) for name in ("micro_batch_tokens", "prefetch") if name in options}
    dataset = StreamingDataset(
        client, partition, groups=groups, **{"fields": WITH_ID, "wait_s": PATIENCE_S, **options}
    )
    return StreamingDataLoader(dataset, **of_loader)


def ids(batch: TrainBatch) -> list[int]:
    """The ids of the rows of a batch, in ascending order."""
    return sorted(row for micro in batch if not micro.is_filler for row in micro.extra["id"].tolist())


def all_ids(batches: Iterable[TrainBatch]) -> list[int]:
    """The ids of the rows of batches, batch by batch."""
    return [row for batch in batches for row in ids(batch)]


def counts(client: Client, partition: str = "p") -> tuple[int, int]:
    """The number of rows in the partition, and the number of rows that its first task has leased."""
    status = client.status(partition)
    return status["rows"], status["tasks"][0]["leased_rows"]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)
