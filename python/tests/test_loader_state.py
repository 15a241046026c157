"""States of the loader, killed processes and lost leases. Skipped where torch is not installed."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import PATIENCE_S, TOKEN, Server, connected
from loaders import all_ids, counts, ids, loader, until
from rows import declare, filled, put

from rolldock import Client
from rolldock._calls import taken as taken_rows
from rolldock.torch import BadState, LoaderError
from rolldock.torch.taking import Taken

Script = Callable[..., "subprocess.Popen[str]"]


def test_a_state_leaves_out_what_was_used_and_nothing_else(queue: Client) -> None:
    filled(queue, groups=5, is_ended=True)
    with loader(queue, groups=1, prefetch=2) as loading:
        used = all_ids(next(loading) for _ in range(2))
        state = json.loads(json.dumps(loading.state_dict()))
    # The second batch was not acked, and two more were prefetched.
    assert counts(queue) == (16, 0)
    resumed = loader(queue, groups=3)
    resumed.load_state_dict(state)
    batches = list(resumed)
    # Of a batch with used rows, the other rows are delivered.
    assert [ids(batch) for batch in batches] == [list(range(8, 16)), list(range(16, 20))]
    assert sorted(used + all_ids(batches)) == list(range(20))
    assert counts(queue) == (0, 0)


def test_a_batch_of_used_rows_only_is_left_out(queue: Client) -> None:
    filled(queue, groups=2, is_ended=True)
    with loader(queue, groups=2) as loading:
        next(loading)
        state = loading.state_dict()
    resumed = loader(queue, groups=2)
    resumed.load_state_dict(state)
    assert list(resumed) == []
    assert counts(queue) == (0, 0)


def test_states_of_another_place_are_refused(queue: Client) -> None:
    filled(queue, groups=1)
    with loader(queue) as loading:
        next(loading)
        state = loading.state_dict()
        with pytest.raises(LoaderError, match="before the first batch"):
            loading.load_state_dict(state)
    with pytest.raises(BadState, match="expected a state of partition=q, found partition=p"):
        loader(queue, "q").load_state_dict(state)
    for wrong in ({**state, "version": 2}, {**state, "task": "ref"}, {**state, "groups": []}, {}):
        with pytest.raises(BadState, match="expected"):
            loader(queue).load_state_dict(wrong)


TRAINER = """
import json, os, signal, sys
import rolldock
from rolldock.torch import Fields, StreamingDataLoader, StreamingDataset

partition, checkpoint, die_at, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
fields = Fields(extra=("id",))
dataset = StreamingDataset(rolldock.Client(os.environ["URL"]), partition, groups=1, fields=fields)
loader = StreamingDataLoader(dataset, prefetch=2)
trained = []
if os.path.exists(checkpoint):
    saved = json.load(open(checkpoint))
    trained = saved["trained"]
    loader.load_state_dict(saved["loader"])
for batch in loader:
    if len(trained) == die_at and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    trained += [row for micro in batch for row in micro.extra["id"].tolist()]
    with open(checkpoint + ".new", "w") as file:
        json.dump({"trained": trained, "loader": loader.state_dict()}, file)
    os.replace(checkpoint + ".new", checkpoint)
    if len(trained) >= die_at and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps(trained))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_trainer_loses_and_repeats_no_row(
    server: Server, script: Script, partition: str, tmp_path: Any, when: str
) -> None:
    """It is killed after the step and the checkpoint of its third batch, or before the step of its fourth."""
    client = connected(server, "http")
    declare(client, partition, lease_ms=1_000)
    put(client, partition, groups=6)
    client.end_of_puts(partition)
    arguments = (partition, str(tmp_path / "checkpoint"))
    killed = script(TRAINER, *arguments, "12", when)
    _, err = killed.communicate(timeout=PATIENCE_S)
    assert killed.returncode == -9, err
    resumed = script(TRAINER, *arguments, "-1", "never")
    out, err = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 0, err
    assert sorted(json.loads(out)) == list(range(24))
    assert counts(client, partition) == (0, 0)


def test_a_program_ends_that_leaves_its_loader_open(server: Server, script: Script, partition: str) -> None:
    client = connected(server, "http")
    declare(client, partition)
    put(client, partition, groups=2)
    program = script(
        "import os, sys, rolldock\n"
        "from rolldock.torch import StreamingDataLoader, StreamingDataset\n"
        "dataset = StreamingDataset(os.environ['URL'], sys.argv[1], groups=1)\n"
        "loader = StreamingDataLoader(dataset, prefetch=4)\n"
        "print(next(loader).rows)\n",
        partition,
    )
    out, err = program.communicate(timeout=PATIENCE_S)
    assert (program.returncode, out, err) == (0, "4\n", "")
    until(lambda: counts(client, partition) == (8, 0))


def test_rows_whose_read_cannot_start_are_given_back(queue: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    filled(queue, groups=1)
    with loader(queue, groups=1) as loading:
        with monkeypatch.context() as patched:
            # Python refuses like this at the end of a program, whatever the taking thread is doing.
            patched.setattr(ThreadPoolExecutor, "submit", refused)
            with pytest.raises(RuntimeError, match="interpreter shutdown"):
                next(loading)
            until(lambda: counts(queue) == (4, 0))
        assert ids(next(loading)) == list(range(4))


def test_a_take_that_is_cancelled_at_any_moment_leaves_no_row_leased(server: Server, partition: str) -> None:
    client = connected(server, "http")
    declare(client, partition)
    put(client, partition, groups=2)
    for moment in range(200):
        pending = taken_rows(client._queue, partition, "train", 5.0, {"groups": 1})
        time.sleep(moment * 20e-6)
        pending.cancel()
        del pending
    until(lambda: counts(client, partition) == (8, 0))


def test_a_lost_lease_repeats_no_row(queue: Client) -> None:
    """The ack fails, and the rows of the batch are delivered again."""
    filled(queue, groups=2, is_ended=True)
    loading = loader(queue, groups=1, prefetch=0)
    first = next(loading)
    stream = loading._stream
    assert stream is not None
    # The lease ends without the loader's knowledge.
    stream._held[0].batch.nack()
    assert [ids(batch) for batch in [first, *loading]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert counts(queue) == (0, 0)
    assert stream._used.rows() == set()


def test_prefetched_rows_whose_lease_is_lost_come_again(server: Server, partition: str) -> None:
    client = connected(server, "http")
    declare(client, partition, lease_ms=1_500)
    put(client, partition, groups=3)
    client.end_of_puts(partition)
    loading = loader(client, partition, groups=1, prefetch=1)
    seen = ids(next(loading))
    until(lambda: counts(client, partition)[1] == 8)
    stream = loading._stream
    assert stream is not None
    assert stream._taker is not None
    if not stream._pending:
        # The loader has not collected the batch from its thread yet.
        taken = stream._taker.next(PATIENCE_S)
        assert isinstance(taken, Taken)
        stream._pending.append(taken)
    prefetched = stream._pending[0]
    # An operator gives the rows back.
    lease = f"{server.http}/v1/partitions/{partition}/leases/{prefetched.batch.lease_id:016x}-0/nack"
    headers = {"authorization": f"Bearer {TOKEN}"}
    urllib.request.urlopen(urllib.request.Request(lease, b"", headers), timeout=PATIENCE_S).close()
    until(lambda: prefetched.batch.is_lost)
    seen += all_ids(loading)
    assert sorted(seen) == list(range(12))
    assert counts(client, partition) == (0, 0)
