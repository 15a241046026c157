"""TransferQueue's interface over a server that `init` starts: samples, samplers, the loader, checkpoints."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tq_support import POLLING, client, data, environment, ids, lists, torch  # isort: skip

import rolldock
import rolldock.transfer_queue as tq
from rolldock.transfer_queue.sampler.seqlen_balanced_sampler import get_seqlen_balanced_partitions

__all__ = ["client", "environment"]


# Samples


def test_each_task_consumes_each_sample_once(client: Any) -> None:
    client.put(data(x=ids(0, 6)), partition_id="p")
    first = client.get_meta(["x"], 4, "p", task_name="a")
    assert client.get_meta(["x"], 4, "p", task_name="a").size == 0
    with pytest.raises(ValueError, match="expected a batch_size of at least 0, found -1"):
        client.get_meta(["x"], -1, "p", task_name="a")
    second = client.get_meta(["x"], 2, "p", task_name="a")
    assert sorted(first.global_indexes + second.global_indexes) == list(range(6))
    assert client.get_meta(["x"], 6, "p", task_name="b").size == 6
    assert client.check_consumption_status("a", "p")
    assert client.reset_consumption("p", "a")
    assert not client.check_consumption_status("a", "p")
    assert client.check_consumption_status("b", "p")


def test_a_sample_is_ready_when_it_has_the_fields(client: Any) -> None:
    meta = client.put(data(x=ids(0, 3)), partition_id="p")
    assert client.get_meta(["x", "y"], 1, "p", task_name="a").size == 0
    client.put(data(y=ids(0, 2)), meta.select_samples([0, 2]))
    assert client.get_production_status(["x", "y"], "p")[1].tolist() == [[1, 1], [1, 0], [1, 1]]
    assert client.get_meta(["x", "y"], 2, "p", task_name="a").global_indexes == [0, 2]
    whole = client.get_meta(["x", "y"], 3, "p", mode="force_fetch")
    assert whole.production_status.tolist() == [1, 0, 1]
    with pytest.raises(tq.StorageKeyNotFoundError, match=r"\[1\] do not have field=y"):
        client.get_data(whole)


def test_get_meta_waits_for_samples() -> None:
    tq.init()
    client = tq.get_client()
    threading.Timer(0.2, lambda: client.put(data(x=ids(0)), partition_id="p")).start()
    assert client.get_meta(["x"], 2, "p", task_name="a").size == 2


def test_a_wait_that_is_cancelled_consumes_nothing() -> None:
    tq.init()
    client = tq.get_client()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.async_get_meta(["x"], 2, "p", task_name="a"), 0.2)
        await client.async_put(data(x=ids(0)), partition_id="p")

    asyncio.run(main())
    status = client.get_consumption_status("a", "p")[1]
    assert status is not None
    assert status.tolist() == [0, 0]


def test_metadata_of_a_cleared_sample_never_name_a_later_one(client: Any) -> None:
    old = client.put(data(x=ids(0)), partition_id="p")
    client.clear_samples(old)
    new = client.put(data(x=ids(10)), partition_id="p")
    assert set(new.global_indexes).isdisjoint(old.global_indexes)
    with pytest.raises(tq.StorageKeyNotFoundError, match="cleared"):
        client.get_data(old)
    with pytest.raises(tq.StorageKeyNotFoundError, match="cleared"):
        client.put(data(x=ids(20)), old)
    client.clear_samples(old)
    assert lists(client.get_data(new)["x"]) == [[10, 11], [12, 13]]


def test_a_cleared_partition_frees_its_rows(client: Any) -> None:
    for step in range(3):
        client.put(data(x=ids(0, 100)), partition_id=f"step-{step}")
        client.clear_partition(f"step-{step}")
    assert client.get_partition_list() == []
    url = tq.init().rolldock.url
    assert rolldock.Client(url).status("transfer_queue")["rows"] == 0


def test_more_samples_than_the_limit_are_refused() -> None:
    tq.init({"backend": {"SimpleStorage": {"total_storage_size": 3}}})
    client = tq.get_client()
    client.put(data(x=ids(0)), partition_id="p")
    with pytest.raises(rolldock.errors.Full):
        client.put(data(x=ids(0)), partition_id="p")
    indexes = client.get_consumption_status("a", "p")[0]
    assert indexes is not None
    assert len(indexes) == 2


def test_a_parser_replaces_values(client: Any) -> None:
    def parse(values: dict[str, Any]) -> None:
        values["x"] = [torch.tensor([len(word)]) for word in values["x"]]

    meta = client.put(data(x=["a", "bcd"]), partition_id="p", data_parser=parse)
    assert lists(client.get_data(meta)["x"]) == [[1], [3]]


def test_notes_of_samples(client: Any) -> None:
    meta = client.put(data(x=ids(0)), partition_id="p")
    meta.update_custom_meta([{"a": 1}, {"a": 2}])
    client.set_custom_meta(meta)
    read = client.get_meta(["x"], 2, "p", task_name="t")
    assert [one["a"] for one in read.custom_meta] == [1, 2]


# Samplers


class Last(tq.BaseSampler):
    """Chooses the newest samples, and keeps them."""

    def sample(
        self, ready_indexes: list[int], batch_size: int, *args: Any, **kwargs: Any
    ) -> tuple[list[int], list[int]]:
        assert kwargs["task_name"] == "t", args
        return ready_indexes[-batch_size:], []


def test_a_sampler_of_ones_own() -> None:
    tq.init({"controller": {"polling_mode": True, "sampler": Last()}})
    client = tq.get_client()
    client.put(data(x=ids(0, 4)), partition_id="p")
    for _ in range(2):
        assert client.get_meta(["x"], 2, "p", task_name="t").global_indexes == [2, 3]


@pytest.mark.parametrize("seed", range(4))
def test_balanced_parts_against_all_splits(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 100, 8).tolist()
    parts = get_seqlen_balanced_partitions(lengths, 2, equal_size=True)
    assert sorted(place for part in parts for place in part) == list(range(8))
    assert [len(part) for part in parts] == [4, 4]
    gap = abs(sum(lengths[place] for place in parts[0]) - sum(lengths[place] for place in parts[1]))
    # The gap is at most the largest difference between two items.
    assert gap <= max(lengths) - min(lengths)


# The loader and checkpoints


def test_the_loader_gives_each_sample_once() -> None:
    config = tq.init({"controller": {"polling_mode": True, "sampler": tq.RankAwareSampler}})
    tq.get_client().put(data(x=torch.arange(10).reshape(10, 1)), partition_id="p")
    seen = []
    for rank in range(2):
        dataset = tq.StreamingDataset(config, 5, 3, ["x"], "p", "train", rank)
        batches = iter(tq.StreamingDataLoader(dataset))
        for size in (3, 2):
            batch, meta = next(batches)
            assert batch.batch_size[0] == meta.size == size
            assert [one.item() for one in batch["x"].unbind()] == meta.global_indexes
            seen += meta.global_indexes
    assert sorted(seen) == list(range(10))


def test_the_loader_ends_when_all_is_consumed() -> None:
    config = tq.init(POLLING)
    tq.get_client().put(data(x=torch.arange(4).reshape(4, 1)), partition_id="p")
    dataset = tq.StreamingDataset(config, 2, 2, ["x"], "p", "train", 0, should_check_consumption_status=True)
    assert sum(meta.size for _, meta in tq.StreamingDataLoader(dataset)) == 4


def test_a_checkpoint_in_another_server(tmp_path: Path) -> None:
    tq.init(POLLING)
    tq.kv_batch_put(["a", "b"], "p", data(x=ids(0), y=["s", "t"]), tags=[{"n": 1}, {"n": 2}])
    assert tq.get_client().get_meta(["x"], 1, "p", task_name="t").size == 1
    tq.save_checkpoint(tmp_path / "saved", metadata={"step": 7})
    tq.close()
    tq.init(POLLING)
    tq.kv_put("other", "q", {"x": torch.tensor([1])})
    tq.load_checkpoint(tmp_path / "saved")
    assert tq.kv_list() == {"p": {"a": {"n": 1}, "b": {"n": 2}}}
    assert lists(tq.kv_batch_get(["b", "a"], "p")["x"]) == [[2, 3], [0, 1]]
    assert tq.get_client().get_meta(["x"], 1, "p", task_name="t").global_indexes == [1]
    assert tq.kv_put("c", "p", {"x": torch.tensor([5])}).size == 1


def test_a_checkpoint_needs_init(tmp_path: Path) -> None:
    for call in (tq.save_checkpoint, tq.load_checkpoint):
        with pytest.raises(RuntimeError, match="not initialized"):
            call(tmp_path)
