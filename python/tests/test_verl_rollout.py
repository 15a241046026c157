"""A run in the place of verl's rollout, over `rolldock.transfer_queue`."""

from __future__ import annotations

import importlib
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, TOKEN, Server, connected
from tq_support import environment  # noqa: F401
from verl_support import made, taken, tensordict, torch, verl

import rolldock.transfer_queue as tq
from rolldock import Client
from rolldock.verl import BadBatch, RolloutEnded, to_tensordict, write_back
from rolldock.verl.keyed import to_kv_batch_meta
from rolldock.verl.rollout import RolloutManager

NonTensorData, NonTensorStack = tensordict.NonTensorData, tensordict.NonTensorStack


@pytest.fixture(autouse=True)
def started(environment: None) -> None:  # noqa: ARG001, F811
    tq.init()


def prompts(*uids: str, step: int = 1, **more: Any) -> Any:
    """The prompts that verl's trainer submits. Also puts their tags into the transfer queue, as verl does."""
    tags = [{"is_prompt": True, "status": "pending", "global_steps": step} for _ in uids]
    tq.kv_batch_put(list(uids), "train", tags=tags)
    fields = {"uid": NonTensorStack(*uids), "global_steps": NonTensorData(step)}
    return tensordict.TensorDict({**fields, **more}, batch_size=len(uids))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


def statuses() -> dict[str, str]:
    return {key: tags.get("status", "") for key, tags in tq.kv_list("train").get("train", {}).items()}


def filled(client: Client, groups: int) -> None:
    for group in range(groups):
        client.put("run", f"group-{group}", made(4, seed=group))


def test_rows_become_trajectories_and_are_written_back(queue: Client) -> None:
    batch = taken(queue, made(4, seed=1), groups=2)
    meta = to_kv_batch_meta(batch, global_steps=5)
    assert meta.keys == ["group-0_0_0", "group-0_1_0", "group-1_0_0", "group-1_1_0"]
    fields = to_tensordict(batch)
    read = tq.kv_batch_get(meta.keys, "train")
    for name in ("input_ids", "responses", "rollout_log_probs", "rm_scores"):
        assert torch.equal(read[name].values(), fields[name].values()), name
    assert [tags["seq_len"] for tags in meta.tags] == fields["input_ids"].offsets().diff().tolist()
    assert {tags["global_steps"] for tags in meta.tags} == {5}
    read["values"] = read["rm_scores"] + 1
    tq.kv_batch_put(meta.keys, "train", read.select("values"))
    meta.reorder([2, 0, 3, 1])
    write_back(batch, meta, ["values"])
    written = queue.get("p", batch.handles, columns=["values"])
    for row, expected in enumerate((fields["rm_scores"] + 1).unbind()):
        assert written["values"][row].tolist() == expected.tolist()


def test_a_uid_that_verl_would_cut_is_refused(queue: Client) -> None:
    batch = taken(queue, made(1, seed=1))
    with pytest.raises(BadBatch, match=r"without an underscore, found \['a_b'\]"):
        to_kv_batch_meta(batch, uids={"group-0": "a_b"})


def test_prompts_get_groups_that_are_acked_after_their_step(queue: Client) -> None:
    queue.declare("run")
    filled(queue, 3)
    with RolloutManager(queue, "run") as manager:
        manager.generate_sequences(prompts("a", "b"))
        until(lambda: list(statuses().values()).count("finished") == 2)
        keys = [f"{uid}_{session}_0" for uid in "ab" for session in range(4)]
        assert sorted(statuses()) == sorted([*keys, "a", "b"])
        # verl removes prompts when it has sampled them, and trajectories at the end of the step.
        tq.kv_clear(["a", "b"], "train")
        manager.generate_sequences(prompts("c"))
        until(lambda: statuses().get("c") == "finished")
        assert queue.status("run")["rows"] == 12
        tq.kv_clear(keys, "train")
    # The trainer has not used the rows of `c`.
    assert queue.status("run")["rows"] == 4
    assert queue.take("run", groups=1, wait_s=0) is not None


def test_the_end_of_the_run_fails_the_prompts_that_are_left(queue: Client) -> None:
    queue.declare("run")
    filled(queue, 1)
    queue.end_of_puts("run")
    with RolloutManager(queue, "run") as manager:
        manager.generate_sequences(prompts("a", "b"))
        until(lambda: statuses()["a"] == "finished" and statuses()["b"] == "failure")
        with pytest.raises(RolloutEnded, match="the run has ended"):
            manager.generate_sequences(prompts("c"))


def test_verl_makes_a_manager_of_the_run_that_the_environment_names(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLDOCK_QUEUE_URL", raising=False)
    with pytest.raises(RolloutEnded, match="in ROLLDOCK_QUEUE_URL, found none"):
        RolloutManager.create(config={})
    monkeypatch.setenv("ROLLDOCK_QUEUE_URL", server.http)
    monkeypatch.setenv("ROLLDOCK_QUEUE_TOKEN", TOKEN)
    connected(server, "http").put("train", "group-0", made(4, seed=0))
    with RolloutManager.create(config={}, llm_client=None) as manager:
        manager.generate_sequences(prompts("a"))
        until(lambda: statuses()["a"] == "finished")


def test_a_validation_is_refused(queue: Client) -> None:
    queue.declare("run")
    with (
        RolloutManager(queue, "run") as manager,
        pytest.raises(BadBatch, match="the run validates"),
    ):
        manager.generate_sequences(prompts("a", validate=NonTensorData(True)))


def test_verls_replay_buffer_samples_the_groups_of_a_run(queue: Client) -> None:
    verl()
    queue_of_verl = importlib.import_module("transfer_queue")
    assert queue_of_verl.KVBatchMeta is tq.KVBatchMeta
    # The package `v1` imports the trainers, which need Ray.
    path = Path(verl().__file__).parent / "trainer" / "ppo" / "v1" / "replay_buffer.py"
    buffers = runpy.run_path(str(path))
    queue.declare("run")
    filled(queue, 2)
    buffer = buffers["ReplayBuffer"](
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=1,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        poll_interval=0.05,
    )
    with RolloutManager(queue, "run") as manager:
        manager.generate_sequences(prompts("a", "b"))
        meta, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    assert isinstance(meta, tq.KVBatchMeta)
    assert sorted(meta.keys) == sorted(f"{uid}_{session}_0" for uid in "ab" for session in range(4))
    data = tq.kv_batch_get(meta.keys, "train", ["uid", "response_mask", "rm_scores", "values"])
    assert sorted(data.keys()) == ["response_mask", "rm_scores", "uid"]
