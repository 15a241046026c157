"""TransferQueue's interface in use: tasks, loaders, threads and processes, with one server for all tests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import PATIENCE_S

from tq_support import call, data, ids, lists, shared, tensordict, torch  # isort: skip

import rolldock
import rolldock.transfer_queue as tq
from rolldock.transfer_queue import lifecycle
from rolldock.transfer_queue.dataloader.streaming_dataset import chunk_batch_fn
from rolldock.transfer_queue.link import Link, Place
from rolldock.transfer_queue.server import stored_place

__all__ = ["call", "shared"]

Caller = Callable[..., Any]


def numbered(partition: str, samples: int) -> tq.BatchMeta:
    return tq.get_client().put(data(x=torch.arange(samples).reshape(samples, 1)), partition_id=partition)


# Tasks


def test_statuses_are_those_of_each_task_and_field(call: Caller, partition: str) -> None:
    meta = numbered(partition, 3)
    call("put", data(y=ids(0, 1)), meta.select_samples([1]))
    taken = call("get_meta", ["x"], 2, partition, task_name="a")
    assert taken.global_indexes == meta.global_indexes[:2]
    indexes, status = call("get_consumption_status", "a", partition)
    assert (indexes.tolist(), status.tolist()) == (meta.global_indexes, [1, 1, 0])
    assert call("get_consumption_status", "b", partition)[1].tolist() == [0, 0, 0]
    indexes, status = call("get_production_status", ["y", "x"], partition)
    assert (indexes.tolist(), status.tolist()) == (meta.global_indexes, [[0, 1], [1, 1], [0, 1]])
    assert call("check_production_status", ["x"], partition)
    assert not call("check_production_status", ["x", "y"], partition)
    assert not call("check_production_status", ["x", "absent"], partition)
    assert not call("check_production_status", [], partition)
    assert not call("check_consumption_status", "a", partition)
    call("get_meta", ["x"], 1, partition, task_name="a")
    assert call("check_consumption_status", "a", partition)


def test_new_samples_are_not_consumed(call: Caller, partition: str) -> None:
    numbered(partition, 2)
    call("get_meta", ["x"], 2, partition, task_name="a")
    assert call("check_consumption_status", "a", partition)
    later = numbered(partition, 2)
    assert not call("check_consumption_status", "a", partition)
    call("clear_samples", later)
    assert call("check_consumption_status", "a", partition)


def test_consumption_is_reset_for_one_task_or_for_all(call: Caller, partition: str) -> None:
    numbered(partition, 4)
    for task in "ab":
        assert call("get_meta", ["x"], 4, partition, task_name=task).size == 4
    assert call("reset_consumption", partition, "a")
    assert call("get_meta", ["x"], 4, partition, task_name="a").size == 4
    assert call("get_meta", ["x"], 4, partition, task_name="b").size == 0
    assert call("reset_consumption", partition)
    assert [call("get_meta", ["x"], 4, partition, task_name=task).size for task in "ab"] == [4, 4]


def test_cleared_samples_are_given_to_no_task(call: Caller, partition: str) -> None:
    meta = numbered(partition, 4)
    assert call("get_meta", ["x"], 1, partition, task_name="a").size == 1
    call("clear_samples", meta.select_samples([0, 2]))
    rest = [meta.global_indexes[1], meta.global_indexes[3]]
    assert call("get_meta", ["x"], 2, partition, task_name="a").global_indexes == rest
    assert call("get_meta", ["x"], 2, partition, task_name="b").global_indexes == rest
    call("clear_samples", meta)
    assert call("get_meta", None, 0, partition, mode="force_fetch").size == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 1, "p"), "expected data_fields in mode fetch, found None"),
        ((["x"], 1, "p"), "expected a task_name in mode fetch, found None"),
        ((["x"], 1, "p", "take"), "expected mode fetch, force_fetch or insert, found 'take'"),
        ((["x"], 0, "p", "insert"), "expected a positive batch_size, found 0"),
    ],
)
def test_calls_for_metadata_that_are_not_valid(call: Caller, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call("get_meta", *arguments)


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda meta: {"metadata": meta}, "expected data of samples=3, found samples=2"),
        (lambda _: {}, "expected a partition_id or metadata, found neither"),
        (lambda _: {"metadata": tq.BatchMeta.empty()}, "metadata of at least one sample"),
        (
            lambda meta: {"metadata": tq.BatchMeta(meta.global_indexes[:2], ["p", "q"])},
            r"expected samples of one partition, found \['p', 'q'\]; use chunk_by_partition",
        ),
        (
            lambda meta: {"metadata": meta[:2], "data_parser": lambda values: values.update(z=[1, 2])},
            r"expected the fields \['y'\] after data_parser, found \['y', 'z'\]",
        ),
        (
            lambda meta: {"metadata": meta[:2], "data_parser": lambda values: values.update(y=[1])},
            "field=y: expected values of samples=2, found length mismatch: 1",
        ),
    ],
)
def test_puts_that_are_not_valid_store_nothing(
    shared: Any, partition: str, put: Callable[[Any], dict[str, Any]], message: str
) -> None:
    meta = numbered(partition, 3)
    with pytest.raises(ValueError, match=message):
        shared.put(data(y=ids(0)), **put(meta))
    assert shared.get_meta(None, 0, partition, mode="force_fetch").field_names == ["x"]


def test_data_of_several_partitions_are_read_together(shared: Any, partition: str) -> None:
    one, other = numbered(partition, 2), numbered(f"{partition}-other", 3)
    mixed = tq.BatchMeta.concat([other[2], one[1], other[0]])
    assert lists(shared.get_data(mixed)["x"]) == [[2], [1], [0]]
    assert shared.get_data(tq.BatchMeta.empty()).batch_size[0] == 0


# Loaders


@pytest.mark.parametrize(("samples", "size", "sizes"), [(7, 3, [3, 3, 1]), (4, 4, [4]), (3, 1, [1, 1, 1])])
def test_micro_batches_have_their_own_metadata(
    shared: Any, partition: str, samples: int, size: int, sizes: list[int]
) -> None:
    meta = numbered(partition, samples)
    parts = chunk_batch_fn(shared.get_data(meta), meta, size)
    assert [part.batch_size[0] for part, _ in parts] == [of.size for _, of in parts] == sizes
    first = meta.global_indexes[0]
    assert all([one + first for (one,) in lists(part["x"])] == of.global_indexes for part, of in parts)


@pytest.mark.parametrize(
    ("batch", "size", "error", "message"),
    [
        ({"x": 1}, 1, TypeError, "Expected TensorDict, got dict"),
        (tensordict.TensorDict({}, batch_size=2), 0, ValueError, "positive integer, got 0"),
        (tensordict.TensorDict({}, batch_size=2), 3, ValueError, r"\(3\) exceeds total batch size \(2\)"),
        (tensordict.TensorDict({}, batch_size=[]), 1, ValueError, "non-empty batch_size"),
    ],
)
def test_batches_that_cannot_be_split(batch: Any, size: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        chunk_batch_fn(batch, tq.BatchMeta([0, 1], ["p", "p"]), size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size must be >= 1, got 0"),
        ({"data_fields": []}, "at least one field name"),
        ({"dp_rank": -1}, "dp_rank -1 must be"),
    ],
)
def test_datasets_that_are_not_valid(options: dict[str, Any], message: str) -> None:
    valid = {"batch_size": 2, "micro_batch_size": 1, "data_fields": ["x"], "partition_id": "p", "dp_rank": 0}
    with pytest.raises(ValueError, match=message):
        tq.StreamingDataset(None, task_name="t", **{**valid, **options})


def streamed(dataset: tq.StreamingDataset) -> list[int]:
    return [index for _, meta in tq.StreamingDataLoader(dataset) for index in meta.global_indexes]


def test_a_loader_is_reset_and_goes_on_with_another_partition(shared: Any, partition: str) -> None:
    first, second = numbered(partition, 6), numbered(f"{partition}-2", 2)
    dataset = tq.StreamingDataset(
        tq.init(), 2, 2, ["x"], partition, "t", 0, should_check_consumption_status=True
    )
    assert streamed(dataset) == first.global_indexes
    assert streamed(dataset) == []
    loader = tq.StreamingDataLoader(dataset)
    loader.reset()
    assert streamed(dataset) == first.global_indexes
    assert [meta.global_indexes for _, meta in loader.get_buffer()] == [
        first.global_indexes[start : start + 2] for start in (0, 2, 4)
    ]
    loader.step(f"{partition}-2")
    assert loader.get_buffer() == []
    assert streamed(dataset) == second.global_indexes
    assert shared.check_consumption_status("t", partition)


def test_a_loader_gets_samples_that_are_put_while_it_waits(
    shared: Any, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolldock.transfer_queue.dataloader.streaming_dataset._PAUSE_S", 0.01)
    meta = shared.get_meta(["x"], 4, partition, mode="insert")
    dataset = tq.StreamingDataset(
        tq.init(), 2, 1, ["x"], partition, "t", 0, should_check_consumption_status=True
    )
    for delay_s, part in ((0.1, meta[:2]), (0.3, meta[2:])):
        threading.Timer(delay_s, shared.put, (data(x=ids(0)), part)).start()
    assert streamed(dataset) == meta.global_indexes


# Threads and processes


def test_sixteen_threads_consume_each_sample_once(shared: Any, partition: str) -> None:
    samples = 16 * 25

    def work(number: int) -> list[int]:
        keys = [f"{number}-{row}" for row in range(25)]
        tq.kv_batch_put(keys, partition, data(x=torch.full((25, 1), number)))
        found: list[int] = []
        while len(found) < 25:
            meta = shared.get_meta(["x"], 5, partition, task_name="t")
            found += meta.global_indexes
            if meta:
                assert set(shared.get_data(meta)["x"].unbind()[0].shape) == {1}
        return found

    with ThreadPoolExecutor(16) as pool:
        seen = [index for found in pool.map(work, range(16)) for index in found]
    assert len(seen) == len(set(seen)) == samples
    assert shared.check_consumption_status("t", partition)
    for number in (0, 15):
        assert set(
            map(tuple, lists(tq.kv_batch_get([f"{number}-{row}" for row in range(25)], partition)["x"]))
        ) == {(number,)}


def test_many_calls_of_asyncio_consume_each_sample_once(shared: Any, partition: str) -> None:
    async def main() -> list[Any]:
        puts = [tq.async_kv_put(str(n), partition, {"x": torch.tensor([n])}) for n in range(100)]
        metas = [shared.async_get_meta(["x"], 4, partition, task_name="t") for _ in range(25)]
        await asyncio.gather(*puts)
        taken = await asyncio.gather(*metas)
        read = await asyncio.gather(*(shared.async_get_data(meta) for meta in taken))
        return [one for batch in read for (one,) in lists(batch["x"])]

    assert sorted(asyncio.run(main())) == list(range(100))


@pytest.mark.usefixtures("shared")
def test_a_put_waits_for_a_server_that_is_stopped_for_a_while(partition: str) -> None:
    session = lifecycle._session
    assert session is not None
    assert session.server is not None
    server = session.server._process.pid
    os.killpg(server, signal.SIGSTOP)
    going_on = threading.Timer(7, os.killpg, (server, signal.SIGCONT))
    going_on.start()
    try:
        tq.kv_put("a", partition, {"x": torch.tensor([1])})
    finally:
        going_on.join()
    assert lists(tq.kv_batch_get("a", partition)["x"]) == [[1]]


@pytest.mark.usefixtures("shared")
def test_a_cancelled_put_leaves_the_client_usable(partition: str) -> None:
    async def main() -> None:
        put = asyncio.ensure_future(tq.async_kv_put("a", partition, {"x": torch.zeros(200_000)}))
        await asyncio.sleep(0)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        await tq.async_kv_put("b", partition, {"x": torch.ones(2)})

    asyncio.run(main())
    assert lists(tq.kv_batch_get("b", partition)["x"]) == [[1, 1]]


@pytest.mark.usefixtures("shared")
def test_a_forked_process_uses_the_queue(partition: str) -> None:
    """Another thread holds the lock of the module when this process forks."""
    tq.kv_put("a", partition, {"x": torch.tensor([1])})
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with lifecycle._lock:
            is_held.set()
            may_end.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(PATIENCE_S)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(PATIENCE_S))
            tq.kv_put("b", partition, {"x": torch.tensor([2])})
            tq.close()
            code = 0
        finally:
            os._exit(code)
    may_end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert lists(tq.kv_batch_get(["a", "b"], partition)["x"]) == [[1], [2]]


OTHER = """
import sys, torch, rolldock.transfer_queue as tq

partition, name = sys.argv[1:]
client = tq.get_client()
for step in range(20):
    tq.kv_put(f"{name}-{step}", partition, {"x": torch.tensor([step])}, {name: step})
    meta = client.get_meta(["x"], 1, partition, task_name="t")
    print(*meta.global_indexes)
"""


def test_two_processes_share_a_queue(
    shared: Any, partition: str, script: Callable[..., subprocess.Popen[str]]
) -> None:
    programs = [script(OTHER, partition, name) for name in "uv"]
    said = [program.communicate(timeout=PATIENCE_S) for program in programs]
    # pytest would shorten a list of errors, so they are joined into one text.
    assert [program.returncode for program in programs] == [0, 0], "\n".join(error for _, error in said)
    taken = [int(index) for out, _ in said for index in out.split()]
    with_data = shared.get_meta(None, 0, partition, mode="force_fetch").global_indexes
    left = shared.get_meta(["x"], 40 - len(taken), partition, task_name="t").global_indexes
    assert sorted(taken + left) == with_data
    assert len(with_data) == 40
    assert tq.kv_list(partition)[partition] == {
        f"{name}-{step}": {name: step} for name in "uv" for step in range(20)
    }


def test_a_client_with_another_secret_is_refused(shared: Any) -> None:
    with rolldock.Client(tq.init().rolldock.url) as queue:
        place = stored_place(queue)
    assert place is not None
    with pytest.raises(ConnectionError, match="no answer of the controller"):
        Link(Place(place.address, b"another")).call("partition_list")
    assert isinstance(shared.get_partition_list(), list)


@pytest.mark.parametrize("name", ["_add", "__init__", "_partitions"])
def test_calls_that_are_not_public_are_refused(shared: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        shared._call(name)
