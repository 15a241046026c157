"""Data-parallel ranks under torchrun, over gloo. Skipped where torch is not installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S, TOKEN, Server, connected
from rows import declare, made, put

import rolldock

torch = pytest.importorskip("torch")

RANKS = 4
Script = Callable[..., "subprocess.Popen[str]"]
#: The number of groups of four rows. After them comes a group of one row. Batches have three groups, and the
#: last batch has only this one row.
GROUPS = 9
ROWS = 4 * GROUPS + 1


def job(server: Server, partition: str, folder: Path, kill_at: int = -1) -> subprocess.CompletedProcess[str]:
    """Runs a job of four ranks to its end."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    program = subprocess.Popen(
        [*command, str(here / "ranks_trainer.py"), partition, str(folder), str(kill_at)],
        env={**os.environ, "URL": server.http, "ROLLDOCK_QUEUE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = program.communicate(timeout=2 * PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(command, program.returncode, out, err)


def filled(server: Server, partition: str, lease_ms: int) -> rolldock.Client:
    """Puts all rows, and ends the puts."""
    client = connected(server, "http")
    declare(client, partition, lease_ms)
    put(client, partition, groups=1, size=1, first=put(client, partition, groups=GROUPS))
    client.end_of_puts(partition)
    return client


def ends(folder: Path) -> list[dict[str, Any]]:
    """What each rank has written at its end."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


def trained_alone(groups: list[list[int]]) -> list[Any]:
    """The parameters of a model that is trained on the same batches in one process, row by row."""
    rows = {}
    for first in range(0, ROWS, 4):
        data = made(min(4, ROWS - first), first)
        for place in range(len(data["id"])):
            rows[first + place] = {name: values[place] for name, values in data.items()}
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 1000)).double()
    for ids in groups:
        model.zero_grad()
        divisor = max(sum(int(rows[row]["response_mask"].sum()) for row in ids), 1)
        for row in (rows[row] for row in ids):
            prompt, response = row["prompt_ids"].tolist(), row["response_ids"].tolist()
            tokens = torch.tensor(prompt + response)
            chosen = model(tokens).log_softmax(-1)
            for place, learns in enumerate(row["response_mask"].tolist()):
                at = len(prompt) + place
                if learns:
                    (-chosen[at - 1, tokens[at]] * float(row["advantage"]) / divisor).backward(
                        retain_graph=True
                    )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
    return [parameter.tolist() for parameter in model.parameters()]


PAIR = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
import rolldock
from rolldock import errors
from rolldock.torch import LoaderError, RankLost, Ranks, StreamingDataLoader, StreamingDataset

rank, meeting, partition = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
client = rolldock.Client(os.environ["URL"])
dataset = StreamingDataset(client, partition, groups=2, at_least=2, wait_s=0.2)
loader = StreamingDataLoader(dataset, prefetch=1)
try:
    next(loader)
except errors.Deadline as error:
    print("late")
dist.barrier()
if rank == 0:
    rows = {"prompt_ids": [[1], [2, 3]], "response_ids": [[4], [5]], "response_mask": [[1], [1]]}
    for group in "ab":
        client.put(partition, group, {**rows, "rollout_logprobs": [[-1.0], [-1.0]], "advantage": [1.0, -1.0]})
dist.barrier()
batch = next(loader)
print(batch.totals.rows, batch.rows, flush=True)
if rank == 1:
    os._exit(0)
try:
    next(loader)
except RankLost as error:
    print("lost")
loader.close()
"""


def test_all_ranks_learn_of_a_late_batch_and_of_a_lost_rank(
    server: Server, script: Script, partition: str, tmp_path: Path
) -> None:
    client = connected(server, "http")
    client.declare(partition)
    programs = [script(PAIR, str(rank), str(tmp_path / "meeting"), partition) for rank in range(2)]
    said = [program.communicate(timeout=PATIENCE_S) for program in programs]
    assert [out for out, _ in said] == ["late\n4 2\nlost\n", "late\n4 2\n"], said
    # The batch in use was not acked, because a rank did not report the end of its use.
    assert client.status(partition)["rows"] == 4


BAD_ROW = """
import os, sys
import torch.distributed as dist
import rolldock
from rolldock.torch import BadRow, Ranks, StreamingDataLoader, StreamingDataset

meeting, partition = sys.argv[1], sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + meeting, rank=0, world_size=1)
client = rolldock.Client(os.environ["URL"])
rows = {"prompt_ids": [[1]], "response_ids": [[4]], "response_mask": [[1]], "advantage": [1.0]}
client.put(partition, "bad", {**rows, "rollout_logprobs": [[-1.0, -1.0]]})
ranks = Ranks(group=dist.new_group(backend="gloo"))
loader = StreamingDataLoader(StreamingDataset(client, partition, groups=1, ranks=ranks))
try:
    next(loader)
except BadRow as error:
    print("bad")
print(len(list(loader)))
dist.destroy_process_group()
"""


def test_a_rank_with_a_bad_row_ends_and_acks_nothing(
    server: Server, script: Script, partition: str, tmp_path: Path
) -> None:
    client = connected(server, "http")
    client.declare(partition)
    program = script(BAD_ROW, str(tmp_path / "meeting"), partition)
    out, err = program.communicate(timeout=PATIENCE_S)
    assert out == "bad\n0\n", err
    status = client.status(partition)
    assert (status["rows"], status["tasks"][0]["leased_rows"]) == (1, 0)


def check(folder: Path) -> None:
    """Each row was used once, by all members of one replica, and all ranks have the model of one process."""
    ranks = ends(folder)
    steps = ranks[0]["steps"]
    batches = []
    for step in steps:
        seen = step["ranks"]
        assert seen[0] == seen[1], "the members of the first replica"
        assert seen[2] == seen[3], "the members of the second replica"
        assert len({rank["micro_batches"] for rank in seen}) == 1
        assert len(seen[0]["ids"]) + len(seen[2]["ids"]) == step["rows"]
        assert seen[0]["tokens"] + seen[2]["tokens"] == step["tokens"]
        batches.append(sorted(seen[0]["ids"] + seen[2]["ids"]))
    assert sorted(row for batch in batches for row in batch) == list(range(ROWS))
    assert all(rank["parameters"] == ranks[0]["parameters"] for rank in ranks)
    for ours, alone in zip(ranks[0]["parameters"], trained_alone(batches), strict=True):
        np.testing.assert_allclose(ours, alone, rtol=1e-5, atol=1e-7)


def test_two_replicas_of_two_ranks_train_one_model(server: Server, partition: str, tmp_path: Path) -> None:
    client = filled(server, partition, lease_ms=60_000)
    done = job(server, partition, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check(tmp_path)
    assert client.status(partition)["rows"] == 0


def test_the_rows_of_a_killed_rank_come_back_to_a_restarted_job(
    server: Server, partition: str, tmp_path: Path
) -> None:
    client = filled(server, partition, lease_ms=3_000)
    killed = job(server, partition, tmp_path, kill_at=1)
    assert killed.returncode != 0
    assert "Signal 9" in killed.stdout + killed.stderr
    # The rows of the first step were acked. The rank died in the second step, so no row of that step was.
    assert client.status(partition)["rows"] == ROWS - 12
    restarted = job(server, partition, tmp_path)
    assert restarted.returncode == 0, restarted.stdout + restarted.stderr
    check(tmp_path)
    assert client.status(partition)["rows"] == 0
