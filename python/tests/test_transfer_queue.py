"""TransferQueue's interface over a server that `init` starts."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S, ROOT, Server, binary

NEEDED = "rolldock.transfer_queue needs this package; install rolldock[transfer_queue]"
torch = pytest.importorskip("torch", reason=NEEDED)
tensordict = pytest.importorskip("tensordict", reason=NEEDED)
pytest.importorskip("omegaconf", reason=NEEDED)

import rolldock  # noqa: E402
import rolldock.transfer_queue as tq  # noqa: E402
from rolldock.transfer_queue.sampler.seqlen_balanced_sampler import (  # noqa: E402
    get_seqlen_balanced_partitions,
)

PAGE = (ROOT / "docs" / "src" / "transfer-queue-python.md").read_text()
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


# Lifecycle


def test_nothing_is_left_after_close() -> None:
    config = tq.init()
    socket = Path(config.rolldock.url.removeprefix("unix:"))
    assert socket.exists()
    tq.close()
    assert not socket.parent.exists()
    with pytest.raises(RuntimeError, match="init"):
        tq.get_client()
    tq.close()


def test_init_twice_returns_the_same_configuration() -> None:
    assert tq.init(POLLING) == tq.init()


def test_the_server_ends_with_a_killed_process(script: Callable[..., subprocess.Popen[str]]) -> None:
    program = script(
        "import os, signal, rolldock.transfer_queue as tq\n"
        "print(tq.init().rolldock.http, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    url = program.communicate(timeout=PATIENCE_S)[0].strip()
    assert url.startswith("http://127.0.0.1:")

    def is_gone() -> bool:
        try:
            rolldock.Client(url, patience_s=0).partitions()
        except rolldock.errors.Unreachable:
            return True
        except rolldock.errors.Unauthorized:
            return False
        return False

    pause = threading.Event()
    assert any(is_gone() or pause.wait(0.1) for _ in range(int(PATIENCE_S * 10)))


def test_an_unknown_sampler_is_an_error() -> None:
    with pytest.raises(ValueError, match="Could not find sampler Nothing"):
        tq.init({"controller": {"sampler": "Nothing"}})


def test_another_process_joins_and_leaves(script: Callable[..., subprocess.Popen[str]]) -> None:
    tq.init(POLLING)
    tq.kv_put("a", "p", {"x": torch.tensor([1, 2])})
    program = script(
        "import torch, rolldock.transfer_queue as tq\n"
        "assert tq.init().controller.polling_mode\n"
        "assert tq.kv_batch_get('a', 'p')['x'][0].tolist() == [1, 2]\n"
        "tq.kv_put('b', 'p', {'x': torch.tensor([3])})\n"
        "tq.close()\n"
    )
    out, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0, out + err
    assert lists(tq.kv_batch_get(["b", "a"], "p")["x"]) == [[3], [1, 2]]


def test_a_server_that_is_given(server: Server) -> None:
    config = tq.init({"rolldock": {"url": server.http, "token": "secret"}})
    tq.kv_put("a", "p", {"x": torch.tensor([1])})
    assert tq.kv_list() == {"p": {"a": {}}}
    assert config.rolldock.http == server.http
    tq.close()
    # The server goes on, without the samples.
    tq.init({"rolldock": {"url": server.http, "token": "secret"}})
    assert tq.kv_list() == {}


def test_the_metrics_are_those_of_the_server() -> None:
    tq.init({"metrics": {"enabled": True}})
    assert re.fullmatch(r"127\.0\.0\.1:\d+", tq.get_metrics_endpoint() or "")
    tq.close()
    tq.init()
    assert tq.get_metrics_endpoint() is None


# Values


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "complex64"]
)
def test_a_type_is_kept(client: Any, dtype: str) -> None:
    values = torch.tensor([[1, 0, 1], [0, 0, 1]]).to(getattr(torch, dtype))
    read = client.get_data(client.put(data(x=values), partition_id="p"))["x"]
    assert read.dtype == values.dtype
    assert all(torch.equal(one, other) for one, other in zip(read.unbind(), values, strict=True))


@pytest.mark.parametrize("shapes", [[(3,), (1,)], [(), ()], [(2, 3), (1, 3)], [(2, 3), (3, 2)], [(0,), (2,)]])
def test_a_shape_is_kept(client: Any, shapes: list[tuple[int, ...]]) -> None:
    samples = [torch.randn(shape) for shape in shapes]
    for key, sample in zip("ab", samples, strict=True):
        tq.kv_put(key, "p", {"x": sample})
    read = tq.kv_batch_get(["a", "b"], "p")["x"].unbind()
    assert all(torch.equal(one, other) for one, other in zip(read, samples, strict=True))


@pytest.mark.parametrize("value", ["text", b"bytes", {"a": [1, None]}, None, ("x", 2)])
def test_an_object_is_kept(client: Any, value: Any) -> None:
    tq.kv_batch_put(["a", "b"], "p", data(x=tensordict.NonTensorStack(value, value)))
    assert tq.kv_batch_get("b", "p").get("x").tolist() == [value]


def test_what_was_read_is_the_callers_own(client: Any) -> None:
    meta = client.put(data(x=torch.zeros(2, 2)), partition_id="p")
    client.get_data(meta)["x"][0, 0] = 5.0
    assert lists(client.get_data(meta)["x"]) == [[0, 0], [0, 0]]


def test_another_type_is_refused_and_nothing_is_stored(client: Any) -> None:
    tq.kv_put("a", "p", {"x": torch.tensor([1])})
    with pytest.raises(ValueError, match=r"field=x: expected torch.int64 .* found torch.float32"):
        tq.kv_put("b", "p", {"x": torch.tensor([1.0])})
    assert list(tq.kv_list("p")["p"]) == ["a"]
    tq.kv_clear("a", "p")
    tq.kv_put("b", "p", {"x": torch.tensor([1.0])})


# Keys


def test_fields_are_added_and_replaced(client: Any) -> None:
    tq.kv_batch_put(["a", "b"], "p", data(x=ids(0)))
    meta = tq.kv_batch_put(["b", "c"], "p", data(x=ids(10)))
    assert meta.fields == ["x"]
    assert lists(tq.kv_batch_get(["a", "b", "c"], "p")["x"]) == [[0, 1], [10, 11], [12, 13]]
    tq.kv_put("a", "p", {"x": torch.tensor([7]), "y": "z"})
    assert tq.kv_batch_get("a", "p").get("y").tolist() == ["z"]
    assert lists(tq.kv_batch_get(["c", "a"], "p")["x"]) == [[12, 13], [7]]


def test_tags_are_added(client: Any) -> None:
    tq.kv_put("a", "p", tag={"x": 1})
    assert tq.kv_put("a", "p", tag={"y": 2}).tags == [{"x": 1, "y": 2}]
    assert tq.kv_list("p") == {"p": {"a": {"x": 1, "y": 2}}}


def test_tags_of_many_threads_stay(client: Any) -> None:
    tq.kv_put("a", "p", {"x": torch.tensor([1])})
    threads = [
        threading.Thread(target=tq.kv_put, args=("a", "p", {"x": torch.tensor([n])}, {str(n): n}))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tq.kv_list("p")["p"]["a"] == {str(n): n for n in range(8)}


def test_new_keys_of_many_threads_get_one_row_each(client: Any) -> None:
    def put(name: str) -> None:
        tq.kv_put("a", "p", {name: torch.tensor([ord(name)])})

    threads = [threading.Thread(target=put, args=(name,)) for name in "stuvwxyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = tq.kv_batch_get("a", "p")
    assert {name: lists(read[name]) for name in read.keys()} == {name: [[ord(name)]] for name in "stuvwxyz"}  # noqa: SIM118


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tq.kv_put("a", "p"), "at least one parameter"),
        (lambda: tq.kv_put("a", "p", [1]), "dict or TensorDict"),
        (lambda: tq.kv_batch_put(["a"], "p"), "at least one parameter"),
        (lambda: tq.kv_batch_put(["a"], "p", data(x=ids(0))), "batch_size 2"),
        (lambda: tq.kv_batch_put(["a", "a"], "p", data(x=ids(0))), "duplicated keys"),
        (lambda: tq.kv_batch_put(["a"], "p", tags=[{}, {}]), "length of tags 2"),
        (lambda: tq.kv_batch_get("a", "p"), "'a'.* not found"),
        (lambda: tq.kv_batch_get([], "p"), "at least one key"),
        (lambda: tq.kv_batch_get_by_meta(tq.KVBatchMeta(["a"], [{}])), "partition_id"),
    ],
)
def test_arguments_that_are_not_valid(client: Any, call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_missing_key_or_field_is_named(client: Any) -> None:
    tq.kv_put("a", "p", {"x": torch.tensor([1])})
    with pytest.raises(ValueError, match=r"\['b'\] were not found"):
        tq.kv_batch_get(["a", "b"], "p")
    with pytest.raises(ValueError, match=r"\['y'\]"):
        tq.kv_batch_get("a", "p", select_fields="y")


def test_keys_are_cleared(client: Any) -> None:
    tq.kv_batch_put(["a", "b"], "p", data(x=ids(0)))
    tq.kv_clear(["a", "other"], "p")
    assert tq.kv_list("p") == {"p": {"b": {}}}
    tq.kv_clear("a", "nowhere")


def test_the_calls_of_asyncio(client: Any) -> None:
    async def main() -> Any:
        puts = [tq.async_kv_put(str(n), "p", {"x": torch.tensor([n])}) for n in range(20)]
        await asyncio.gather(*puts)
        meta = tq.KVBatchMeta(["3", "1"], [{}, {}], "p", ["x"])
        read = await tq.async_kv_batch_get_by_meta(meta)
        await tq.async_kv_clear("3", "p")
        return lists(read["x"]), len((await tq.async_kv_list("p"))["p"])

    assert asyncio.run(main()) == ([[3], [1]], 19)


# Samples


def test_each_task_consumes_each_sample_once(client: Any) -> None:
    client.put(data(x=ids(0, 6)), partition_id="p")
    first = client.get_meta(["x"], 4, "p", task_name="a")
    assert client.get_meta(["x"], 4, "p", task_name="a").size == 0
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
    assert client.get_consumption_status("a", "p")[1].tolist() == [0, 0]


def test_metadata_of_a_cleared_sample_never_name_a_later_one(client: Any) -> None:
    old = client.put(data(x=ids(0)), partition_id="p")
    client.clear_samples(old)
    new = client.put(data(x=ids(10)), partition_id="p")
    assert new.global_indexes == old.global_indexes
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
    assert len(client.get_consumption_status("a", "p")[0]) == 2


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
    # The method is no worse than the largest difference between two items.
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


# What is said of it


def test_the_program_of_the_page(script: Callable[..., subprocess.Popen[str]]) -> None:
    programs = re.findall(r"<!-- run: (\S+) -->\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == PAGE.count("```python") == 1
    program = script(programs[0][1])
    out, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0, out + err


def test_the_page_names_what_there_is() -> None:
    for name in tq.__all__:
        assert f"`{name.removeprefix('async_')}`" in PAGE, name


def test_an_absent_package_is_named() -> None:
    program = (
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'omegaconf' else found(name)\n"
        "import rolldock.transfer_queue\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "needs omegaconf: install the extra, `rolldock[transfer_queue]`" in done.stderr
