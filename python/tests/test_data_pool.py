"""The calls of a DataPool, on queues of each kind."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolldock import Client, errors
from rolldock.data_pool import DataPool, PoolBatch, Step

DOCS = Path(__file__).resolve().parents[2] / "docs" / "src"


def step(prompt: str, trajectory: str, index: int, is_last: bool = False, **fields: Any) -> Step:
    return Step(
        prompt_ids=[1, 2, 3],
        reward=0.5,
        trajectory_uid=trajectory,
        prompt_uid=prompt,
        step_index=index,
        is_last=is_last,
        **{"response_ids": [index] * 2, "metadata": {"tool": "search", "n": [1]}, **fields},
    )


def got(batch: PoolBatch | None) -> PoolBatch:
    assert batch is not None
    return batch


def test_whole_groups_come_in_the_order_of_their_steps(client: Client, partition: str) -> None:
    pool = DataPool(client, partition, group_size=2)
    pool.submit_step(step("slow", "slow-a", 0))
    assert pool.fetch_batch("train", 4) is None
    # The steps of two prompts and of their trajectories are interleaved.
    for trajectory, index, is_last in [
        ("p-a", 0, False),
        ("q-a", 0, True),
        ("p-b", 1, False),
        ("p-a", 1, True),
    ]:
        pool.submit_step(step(trajectory[0], trajectory, index, is_last))
    pool.submit_steps([step("p", "p-b", 0), step("p", "p-b", 2, True), step("q", "q-b", 0, True)])
    with got(pool.fetch_batch("train", 4)) as batch:
        assert batch.prompt_uids == ["p", "q"]
        named = list(zip(batch["trajectory_uid"].tolist(), batch["step_index"].tolist(), strict=True))
        assert named == [("p-a", 0), ("p-a", 1), ("p-b", 0), ("p-b", 1), ("p-b", 2), ("q-a", 0), ("q-b", 0)]
        assert batch.keys == [f"{trajectory}/{index}" for trajectory, index in named]
        assert [row.tolist() for row in batch.ragged("response_ids")] == [[index] * 2 for _, index in named]
        assert client.get(partition, batch.handles)["trajectory_uid"].tolist() == [name for name, _ in named]
        assert batch["metadata"][0] == '{"n":[1],"tool":"search"}'
        assert not batch.incomplete.any()
    assert pool.fetch_batch("train", 4) is None
    pool.submit_step(step("slow", "slow-b", 0, True))

    def later() -> None:
        time.sleep(0.2)
        pool.complete_trajectory("slow-a")

    completing = threading.Thread(target=later)
    completing.start()
    assert got(pool.wait_batch("train", 4, wait_s=30)).prompt_uids == ["slow"]
    completing.join()


def test_columns_have_the_types_of_the_contract(queue: Client) -> None:
    pool = DataPool(queue, "p", group_size=1)
    pool.submit_step(step("p", "a", 0, True))
    batch = got(pool.fetch_batch("train", 1))
    # The guide's table has the columns with the names of their Arrow types.
    guide = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)`", (DOCS / "rows.md").read_text(), re.MULTILINE))
    of_arrow = {
        "list<uint32>": "List<UInt32>",
        "list<uint8>": "List<UInt8>",
        "list<float32>": "List<Float32>",
    }
    of_arrow |= {
        "uint32": "UInt32",
        "uint64": "UInt64",
        "float32": "Float32",
        "string": "Utf8",
        "bool": "Boolean",
    }
    found = {name: of_arrow[str(batch.column(name).dtype)] for name in batch.names}
    of_steps = {"step_index": "UInt32", "policy_version": "UInt64", "is_last": "Boolean"}
    assert {name: found.pop(name) for name in of_steps} == of_steps
    assert found == {name: guide[name] for name in found}
    # Rust's pool has the same columns. Its test compares them with the rows of the gateway.
    assert set(found) == {
        "branch",
        "end",
        "finish_reason",
        "is_reencoded",
        "metadata",
        "policy_version_max",
        "policy_version_min",
        "prompt_ids",
        "prompt_uid",
        "response_ids",
        "response_mask",
        "reward",
        "rollout_logprobs",
        "sample_index",
        "trajectory_uid",
        "turn_ends",
        "turn_rewards",
        "turn_starts",
    }


def test_a_path_of_turns_keeps_its_columns(queue: Client) -> None:
    pool = DataPool(queue, "p", group_size=1)
    # Two branches share their first turn. Only the first branch trains it.
    left = step(
        "p",
        "a",
        0,
        response_ids=[5, 6, 9, 7],
        response_mask=[1, 1, 0, 1],
        rollout_logprobs=[-1.0, -2.0, 0.0, -3.0],
        turn_starts=[0, 3],
        turn_ends=[2, 4],
        turn_rewards=[1.0, None],
        policy_version=3,
        policy_version_max=4,
        finish_reason="length",
        sample_index=2,
        end="turns",
    )
    right = step(
        "p",
        "a",
        1,
        True,
        response_ids=[5, 6, 8],
        response_mask=[0, 0, 1],
        branch=1,
        turn_starts=[0, 2],
        turn_ends=[2, 3],
        is_reencoded=True,
    )
    plain = step("q", "b", 0, True, response_ids=[4, 4, 4])
    for _ in range(2):
        pool.submit_steps([left, right, plain])
    batch = got(pool.fetch_batch("train", 2))
    lists = {name: [row.tolist() for row in batch.ragged(name)] for name in ("response_ids", "response_mask")}
    assert lists["response_ids"] == [[5, 6, 9, 7], [5, 6, 8], [4, 4, 4]]
    assert lists["response_mask"] == [[1, 1, 0, 1], [0, 0, 1], [1, 1, 1]]
    assert [row.tolist() for row in batch.ragged("rollout_logprobs")] == [[-1.0, -2.0, 0.0, -3.0], [], []]
    assert [row.tolist() for row in batch.ragged("turn_starts")] == [[0, 3], [0, 2], [0]]
    assert [row.tolist() for row in batch.ragged("turn_ends")] == [[2, 4], [2, 3], [3]]
    assert [row.tolist() for row in batch["turn_rewards"]] == [[1.0, None], [None, None], [0.5]]
    assert batch["branch"].tolist() == [0, 1, 0]
    assert batch["sample_index"].tolist() == [2, 0, 0]
    assert batch["policy_version_min"].tolist() == [3, 0, 0]
    assert batch["policy_version_max"].tolist() == [4, 0, 0]
    assert batch["finish_reason"].tolist() == ["length", "stop", "stop"]
    assert batch["is_reencoded"].tolist() == [False, True, False]
    assert batch["end"].tolist() == ["turns", "", ""]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_ids": [1.5, 2.0]}, "response_ids of whole numbers from 0 to 2**32 - 1"),
        ({"response_ids": [2**32, -1]}, "response_ids of whole numbers"),
        ({"response_mask": [1]}, "response_mask of 0 and 1 for each of tokens=2"),
        ({"response_mask": [1, 2]}, "response_mask of 0 and 1"),
        ({"rollout_logprobs": [0.0]}, "none or all of tokens=2, found 1"),
        ({"turn_starts": [0], "turn_ends": [3]}, "in 0..2, found 0..3"),
        ({"turn_starts": [0, 0], "turn_ends": [1, 2]}, "in 1..2, found 0..2"),
        ({"turn_starts": [0]}, "turn_starts and turn_ends"),
        ({"turn_rewards": [1.0]}, "turn_starts and turn_ends"),
        ({"turn_starts": [0], "turn_ends": [2], "turn_rewards": []}, "for all of them or not at all"),
        ({"finish_reason": "end"}, "found 'end'"),
        ({"policy_version": 3, "policy_version_max": 2}, "policy_version_max of 3 or more, found 2"),
    ],
)
def test_columns_of_a_path_that_do_not_fit_are_refused(
    queue: Client, fields: dict[str, Any], expected: str
) -> None:
    pool = DataPool(queue, "p", group_size=1)
    with pytest.raises(errors.BadRequest, match=f"step=0 of trajectory=a: expected .*{re.escape(expected)}"):
        pool.submit_step(step("p", "a", 0, True, **fields))
    assert queue.status("p")["rows"] == 0


def test_duplicate_steps_are_kept_once(client: Client, partition: str) -> None:
    pool = DataPool(client, partition, group_size=2)
    first = step("p", "a", 0)
    pool.submit_step(first)
    pool.submit_step(first)
    for other in (
        dataclasses.replace(first, reward=0.25),
        dataclasses.replace(first, response_ids=[0]),
        dataclasses.replace(first, metadata=None),
    ):
        with pytest.raises(errors.StepDiffers, match="step=0 of trajectory=a"):
            pool.submit_step(other)
    steps = [first, step("p", "a", 1), step("p", "a", 1), step("p", "a", 2, True)]
    pool.submit_steps(steps)
    pool.submit_steps(steps)
    together = [step("q", "d", 0), step("q", "d", 1, True)]
    pool.submit_steps(together)
    pool.submit_steps(together)
    pool.submit_step(step("p", "b", 0, True))
    pool.submit_steps(steps)
    batch = got(pool.fetch_batch("train", 1))
    assert batch["step_index"].tolist() == [0, 1, 2, 0]
    batch.ack()
    for late in (first, step("p", "a", 3), step("p", "c", 0)):
        with pytest.raises(errors.GroupClosed):
            pool.submit_step(late)
    nothing = dataclasses.replace(first, prompt_uid="n", trajectory_uid="n", reward=float("nan"))
    pool.submit_step(nothing)
    pool.submit_step(nothing)


def test_staleness_is_flagged_and_weights_are_written_once(client: Client, partition: str) -> None:
    pool = DataPool(client, partition, group_size=2, staleness_threshold=2)

    def at(trajectory: str, version: int) -> Step:
        return step("p", trajectory, version, version == 9, policy_version=version)

    pool.submit_steps([at("a", 6), at("a", 7), at("a", 9), at("b", 8), at("b", 9)])
    batch = got(pool.fetch_batch("train", 1))
    assert batch.off_policy.tolist() == [True, False, False, False, False]
    assert batch.importance_weights.tolist() == [1.0] * 5
    pool.write_importance_weights(batch.handles[:3], [2.0, 3.0, 4.0])
    with pytest.raises(errors.ColumnExists):
        pool.write_importance_weights(batch.handles[:1], [2.0])
    with pytest.raises(errors.BadRequest, match="each of rows=5, found 1"):
        pool.write_importance_weights(batch.handles, [2.0])
    batch.nack()
    pool.announce(10)
    batch = got(pool.fetch_batch("train", 1))
    assert batch.off_policy.tolist() == [True, True, False, False, False]
    assert batch.importance_weights.tolist() == [2.0, 3.0, 4.0, 1.0, 1.0]
    assert batch.importance_weights.dtype == np.float32


@pytest.mark.parametrize("unfinished", ["give", "drop"])
def test_groups_are_given_up_in_time(client: Client, partition: str, unfinished: Any) -> None:
    pool = DataPool(
        client,
        f"{partition}-{unfinished}",
        group_size=2,
        capacity_steps=2,
        group_deadline_s=0.3,
        unfinished=unfinished,
    )
    pool.submit_steps([step("p", "a", 0), step("p", "a", 1, True)])
    if unfinished == "give":
        batch = got(pool.wait_batch("train", 1, wait_s=30))
        assert (batch.prompt_uids, batch.incomplete.tolist()) == (["p"], [True, True])
        batch.ack()
    else:
        # The partition is full. The group `p` is given up, and this step takes its place.
        pool.submit_step(step("q", "b", 0, True))
    assert pool.expired_groups == 1
    with pytest.raises(errors.GroupClosed):
        pool.submit_step(step("p", "c", 0, True))


def test_sizes_go_by_prompt_and_more_trajectories_are_refused(queue: Client) -> None:
    pool = DataPool(queue, "p", group_size=2, group_sizes={"one": 1}.get, group_deadline_s=None)
    pool.submit_step(step("one", "a", 0, True))
    assert got(pool.fetch_batch("train", 9)).prompt_uids == ["one"]
    pool.submit_steps([step("two", "b", 0), step("two", "c", 0)])
    with pytest.raises(errors.GroupOverflow):
        pool.submit_step(step("two", "d", 0))
    with pytest.raises(errors.UnknownSample):
        pool.complete_trajectory("nowhere")
    pool.clear()
    assert queue.status("p")["rows"] == 0
    with pytest.raises(errors.GroupClosed):
        pool.submit_step(step("two", "b", 1))
    with pytest.raises(errors.BadRequest, match="group_size"):
        DataPool(queue, "q", group_size=0)
    with pytest.raises(errors.Deadline):
        pool.wait_batch("train", 1, wait_s=0.1)


def test_a_full_pool_waits_or_refuses(queue: Client) -> None:
    waiting = DataPool(queue, "w", group_size=2, capacity_steps=1, submit_wait_s=0.2)
    waiting.submit_step(step("p", "a", 0))
    with pytest.raises(errors.Deadline):
        waiting.submit_step(step("p", "a", 1))
    refusing = DataPool(queue, "r", group_size=2, capacity_steps=1, on_full="refuse")
    refusing.submit_step(step("p", "a", 0))
    with pytest.raises(errors.Full):
        refusing.submit_step(step("p", "a", 1))
