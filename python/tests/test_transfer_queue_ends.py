"""Checkpoints of TransferQueue's interface, and its ends. Each test has a server of its own."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S

from tq_support import POLLING, data, environment, lists, torch  # isort: skip

import rolldock.transfer_queue as tq
from rolldock.transfer_queue import snapshot

__all__ = ["environment"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint. The queue got the key `later` after the checkpoint."""
    tq.init(POLLING)
    tq.kv_put("a", "p", {"x": torch.tensor([1, 2])}, {"n": 1})
    folder = tmp_path / "saved"
    tq.save_checkpoint(folder)
    tq.kv_put("later", "p", {"x": torch.tensor([3])})
    return folder


def everything() -> dict[str, Any]:
    return {key: lists(tq.kv_batch_get(key, "p")["x"]) for key in tq.kv_list().get("p", {})}


BOTH = {"a": [[1, 2]], "later": [[3]]}


def test_a_checkpoint_of_this_server_is_loaded_twice(saved: Path) -> None:
    for _ in range(2):
        tq.load_checkpoint(saved)
        assert everything() == {"a": [[1, 2]]}
        tq.kv_put("b", "p", {"x": torch.tensor([4])})
    assert sorted(path.name for path in saved.iterdir()) == [
        "controller_state.pkl",
        "metadata.json",
        "queue.snapshot",
    ]


@pytest.mark.parametrize("file", ["queue.snapshot", "controller_state.pkl"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_changes_nothing(saved: Path, file: str, damage: str) -> None:
    path = saved / file
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    path.write_bytes({"cut": whole[:middle], "flipped": flipped, "empty": b""}[damage])
    if file == "controller_state.pkl" and damage == "flipped":
        # A pickle has no checksum, so a flipped bit in its middle may be a value.
        path.write_bytes(b"\x00" + whole[1:])
    with pytest.raises((RuntimeError, ValueError)):
        tq.load_checkpoint(saved)
    assert everything() == BOTH
    assert not list(saved.glob("*.before"))
    tq.kv_put("b", "p", {"x": torch.tensor([4])})
    path.write_bytes(whole)
    tq.load_checkpoint(saved)
    assert everything() == {"a": [[1, 2]]}


@pytest.mark.parametrize("name", ["metadata.json", "controller_state.pkl", "queue.snapshot"])
def test_an_absent_file_of_a_checkpoint_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        tq.load_checkpoint(saved)
    assert everything() == BOTH


def test_data_that_cannot_be_put_back_are_kept_in_a_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = snapshot._run

    def failing(config: Any, name: str, *arguments: Any) -> None:
        if name == "restore":
            raise RuntimeError("the disk is full")
        run(config, name, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "_run", failing)
        with pytest.raises(RuntimeError, match=r"the disk is full; the data of before are in \S+\.before"):
            tq.load_checkpoint(saved)
    (before,) = saved.glob("*.before")
    before.rename(saved / "queue.snapshot")
    tq.get_client().load_storage_checkpoint(str(saved))
    assert everything() == BOTH


def test_a_save_that_fails_keeps_the_earlier_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "save", failing)
        with pytest.raises(RuntimeError, match="the disk is full"):
            tq.save_checkpoint(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]
    tq.load_checkpoint(saved)
    assert everything() == {"a": [[1, 2]]}


def test_a_save_that_was_killed_between_its_renames_is_loaded(saved: Path) -> None:
    saved.rename(saved.with_name("saved.old"))
    tq.load_checkpoint(saved)
    assert everything() == {"a": [[1, 2]]}


def test_a_later_save_replaces_a_checkpoint(saved: Path) -> None:
    tq.save_checkpoint(saved, metadata={"step": 2})
    tq.kv_clear(["a", "later"], "p")
    tq.load_checkpoint(saved)
    assert everything() == BOTH
    assert json.loads((saved / "metadata.json").read_text())["user_metadata"] == {"step": 2}


# Ends


def test_ranks_in_threads_get_each_sample_once() -> None:
    config = tq.init({"controller": {"polling_mode": True, "sampler": "RankAwareSampler"}})
    tq.get_client().put(data(x=torch.arange(24).reshape(24, 1)), partition_id="p")

    def members(rank: int) -> list[int]:
        dataset = tq.StreamingDataset(config, 3, 2, ["x"], "p", "t", rank)
        stream = iter(dataset)
        return [index for _ in range(4) for index in next(stream)[1].global_indexes]

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(members, [0, 1, 2, 3, 3, 2, 1, 0]))
    assert seen[:4] == seen[:3:-1]
    assert sorted(index for of_rank in seen[:4] for index in of_rank) == list(range(24))


def test_closing_and_beginning_again() -> None:
    urls = set()
    for _ in range(3):
        config = tq.init(POLLING)
        urls.add(config.rolldock.url)
        assert tq.kv_list() == {}
        tq.kv_put("a", "p", {"x": torch.tensor([1])})
        client = tq.get_client()
        tq.close()
        for attempt in (client.get_partition_list, tq.get_client, lambda: tq.kv_put("a", "p", tag={})):
            with pytest.raises((ConnectionError, RuntimeError), match="init"):
                attempt()
    assert len(urls) == 3
    assert "ROLLDOCK_TRANSFER_QUEUE" not in os.environ


def test_a_wait_ends_when_the_queue_is_closed() -> None:
    tq.init()
    client = tq.get_client()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            client.get_meta(["x"], 1, "p", task_name="t")
        except (ConnectionError, RuntimeError) as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    # The thread may wait by now. If not, its call fails when it begins.
    thread.join(0.3)
    tq.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(errors) == 1
