"""TransferQueue's interface: the lifecycle of its server, values, and keys."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, ROOT, Server

from tq_support import POLLING, client, data, environment, ids, lists, tensordict, torch  # isort: skip

import rolldock
import rolldock.transfer_queue as tq

__all__ = ["client", "environment"]

PAGE = (ROOT / "docs" / "src" / "transfer-queue-python.md").read_text()


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


def test_the_server_ends_when_the_process_that_started_it_is_killed(
    script: Callable[..., subprocess.Popen[str]],
) -> None:
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


def test_close_keeps_a_given_server_and_clears_its_samples(server: Server) -> None:
    config = tq.init({"rolldock": {"url": server.http, "token": "secret"}})
    tq.kv_put("a", "p", {"x": torch.tensor([1])})
    assert tq.kv_list() == {"p": {"a": {}}}
    assert config.rolldock.http == server.http
    tq.close()
    # The server continues without the samples.
    tq.init({"rolldock": {"url": server.http, "token": "secret"}})
    assert tq.kv_list() == {}


def test_metrics_have_an_address_only_if_they_are_enabled() -> None:
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


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("shapes", [[(3,), (1,)], [(), ()], [(2, 3), (1, 3)], [(2, 3), (3, 2)], [(0,), (2,)]])
def test_a_shape_is_kept(shapes: list[tuple[int, ...]]) -> None:
    samples = [torch.randn(shape) for shape in shapes]
    for key, sample in zip("ab", samples, strict=True):
        tq.kv_put(key, "p", {"x": sample})
    read = tq.kv_batch_get(["a", "b"], "p")["x"].unbind()
    assert all(torch.equal(one, other) for one, other in zip(read, samples, strict=True))


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("value", ["text", b"bytes", {"a": [1, None]}, None, ("x", 2)])
def test_an_object_is_kept(value: Any) -> None:
    tq.kv_batch_put(["a", "b"], "p", data(x=tensordict.NonTensorStack(value, value)))
    assert tq.kv_batch_get("b", "p").get("x").tolist() == [value]


def test_what_was_read_is_the_callers_own(client: Any) -> None:
    meta = client.put(data(x=torch.zeros(2, 2)), partition_id="p")
    client.get_data(meta)["x"][0, 0] = 5.0
    assert lists(client.get_data(meta)["x"]) == [[0, 0], [0, 0]]


@pytest.mark.usefixtures("client")
def test_another_type_is_refused_and_nothing_is_stored() -> None:
    tq.kv_put("a", "p", {"x": torch.tensor([1])})
    with pytest.raises(ValueError, match=r"field=x: expected torch.int64 .* found torch.float32"):
        tq.kv_put("b", "p", {"x": torch.tensor([1.0])})
    assert list(tq.kv_list("p")["p"]) == ["a"]
    tq.kv_clear("a", "p")
    tq.kv_put("b", "p", {"x": torch.tensor([1.0])})


# Keys


@pytest.mark.usefixtures("client")
def test_fields_are_added_and_replaced() -> None:
    tq.kv_batch_put(["a", "b"], "p", data(x=ids(0)))
    meta = tq.kv_batch_put(["b", "c"], "p", data(x=ids(10)))
    assert meta.fields == ["x"]
    assert lists(tq.kv_batch_get(["a", "b", "c"], "p")["x"]) == [[0, 1], [10, 11], [12, 13]]
    tq.kv_put("a", "p", {"x": torch.tensor([7]), "y": "z"})
    assert tq.kv_batch_get("a", "p").get("y").tolist() == ["z"]
    assert lists(tq.kv_batch_get(["c", "a"], "p")["x"]) == [[12, 13], [7]]


@pytest.mark.usefixtures("client")
def test_tags_are_added() -> None:
    tq.kv_put("a", "p", tag={"x": 1})
    assert tq.kv_put("a", "p", tag={"y": 2}).tags == [{"x": 1, "y": 2}]
    assert tq.kv_list("p") == {"p": {"a": {"x": 1, "y": 2}}}


@pytest.mark.usefixtures("client")
def test_tags_of_many_threads_stay() -> None:
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


@pytest.mark.usefixtures("client")
def test_threads_that_put_the_same_new_key_share_its_row() -> None:
    def put(name: str) -> None:
        tq.kv_put("a", "p", {name: torch.tensor([ord(name)])})

    threads = [threading.Thread(target=put, args=(name,)) for name in "stuvwxyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = tq.kv_batch_get("a", "p")
    assert {name: lists(read[name]) for name in read.keys()} == {name: [[ord(name)]] for name in "stuvwxyz"}  # noqa: SIM118


@pytest.mark.usefixtures("client")
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
def test_invalid_arguments_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.usefixtures("client")
def test_a_missing_key_or_field_is_named() -> None:
    tq.kv_put("a", "p", {"x": torch.tensor([1])})
    with pytest.raises(ValueError, match=r"\['b'\] were not found"):
        tq.kv_batch_get(["a", "b"], "p")
    with pytest.raises(ValueError, match=r"\['y'\]"):
        tq.kv_batch_get("a", "p", select_fields="y")
    # verl also asks for optional fields, so a field that a key lacks is left out if others remain.
    assert list(tq.kv_batch_get("a", "p", select_fields=["x", "y"]).keys()) == ["x"]


@pytest.mark.usefixtures("client")
def test_keys_are_cleared() -> None:
    tq.kv_batch_put(["a", "b"], "p", data(x=ids(0)))
    tq.kv_clear(["a", "other"], "p")
    assert tq.kv_list("p") == {"p": {"b": {}}}
    tq.kv_clear("a", "nowhere")


@pytest.mark.usefixtures("client")
def test_the_async_calls_work() -> None:
    async def main() -> Any:
        puts = [tq.async_kv_put(str(n), "p", {"x": torch.tensor([n])}) for n in range(20)]
        await asyncio.gather(*puts)
        meta = tq.KVBatchMeta(["3", "1"], [{}, {}], "p", ["x"])
        read = await tq.async_kv_batch_get_by_meta(meta)
        await tq.async_kv_clear("3", "p")
        return lists(read["x"]), len((await tq.async_kv_list("p"))["p"])

    assert asyncio.run(main()) == ([[3], [1]], 19)


# Documentation


def test_the_program_of_the_page_runs(script: Callable[..., subprocess.Popen[str]]) -> None:
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
