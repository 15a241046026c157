"""A trainer of a real run: it takes steps from the run's queue and announces versions to its policy."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT, binary

from rolldock import AsyncPolicy, Client, Policy, errors

RECIPE = """
[model]
name = "simulated"
tokenizer = "builtin"

[data]
train = "{root}/data/arithmetic/train.jsonl"

[fleet]
max_loads_per_server = 64

[fleet.simulated]
servers = 2
time_scale = 0.02
mean_response_length = 50

[rollout]
samples_per_prompt = 8
train_batch_size = 4
gen_batch_size = 16
max_gen_batches = 20
max_response_length = 256

[reward]
scorer = "math_dapo"

[queue]
listen = "127.0.0.1:{queue}"

[policy]
mode = "sync"
listen = "127.0.0.1:{policy}"
update = {{ method = "none", pause = "none" }}

[run]
steps = 3
on_short = "error"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a run's queue and of its policy."""
    ports = {"queue": free_port(), "policy": free_port()}
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(root=ROOT, **ports))
    command = [binary(), "run", str(recipe), "--out", str(tmp_path / "out")]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    queue, policy = (f"http://127.0.0.1:{port}" for port in (ports["queue"], ports["policy"]))
    yield queue, policy
    if process.poll() is None:
        process.terminate()
    process.wait(PATIENCE_S)
    print((tmp_path / "log").read_text())


def test_a_trainer_takes_steps_and_announces_versions(run: tuple[str, str]) -> None:
    queue, address = run
    policy, version, rows = Policy(address), 0, 0
    client = Client(queue, patience_s=PATIENCE_S)
    for batch in client.batches(groups=4, at_least=4):
        with batch:
            rows += len(batch)
            assert set(batch.policy_versions.tolist()) == {version}
            assert batch["response_ids"].lengths.tolist() == batch["rollout_logprobs"].lengths.tolist()
        version += 1
        policy.announce_version(version, label=f"step-{version}")
        if version == 1:
            assert policy.wait_version(version, wait_s=PATIENCE_S)["version"] == 1
            versions_are_ordered(policy)
    assert (version, rows) == (3, 3 * 4 * 8)


def versions_are_ordered(policy: Policy) -> None:
    with pytest.raises(errors.PolicyError) as raised:
        policy.announce_version(0)
    assert raised.value.code == "not_newer"
    assert raised.value.details["announced"] == 1
    with pytest.raises(TimeoutError) as late:
        policy.wait_version(9, wait_s=0.1)
    assert isinstance(late.value, errors.NotYet)


def test_the_policy_of_a_run_from_asyncio(run: tuple[str, str]) -> None:
    queue, address = run
    Client(queue, patience_s=PATIENCE_S).inspect()

    async def announce() -> None:
        policy = AsyncPolicy(address)
        assert (await policy.status())["announced"] == 0
        assert (await policy.announce_version(1, path="/weights/step-1"))["announced"] == 1
        with pytest.raises(errors.PolicyError, match="label") as raised:
            await policy.announce_version(2, label="without a number")
        assert raised.value.code == "bad_label"

    asyncio.run(announce())
