"""Steps, and their rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rolldock.columns import Ragged, rows_of
from rolldock.table import Table

if TYPE_CHECKING:
    from rolldock.columns import Array


@dataclass(frozen=True)
class Step:
    """One step of a trajectory.

    Attributes:
        prompt_ids: the tokens that the policy got as input.
        response_ids: the tokens that the policy generated.
        reward: the reward.
        trajectory_uid: the trajectory, unique in the pool.
        prompt_uid: the prompt, whose trajectories form a group.
        step_index: the index of the step in its trajectory.
        policy_version: the oldest policy version of the response's tokens.
        is_last: whether the step completes the trajectory.
        metadata: JSON that only its owner interprets.
    """

    prompt_ids: Sequence[int] | Array
    response_ids: Sequence[int] | Array
    reward: float
    trajectory_uid: str
    prompt_uid: str
    step_index: int = 0
    policy_version: int = 0
    is_last: bool = False
    metadata: Any = None

    @property
    def key(self) -> str:
        """The key of the step's row."""
        return f"{self.trajectory_uid}/{self.step_index}"


def parts_of(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Runs of steps that may be in one put: of one trajectory and version, up to its last step."""
    part: list[Step] = []
    for step in steps:
        if part:
            last = part[-1]
            goes_on = not last.is_last and (last.trajectory_uid, last.prompt_uid, last.policy_version) == (
                step.trajectory_uid,
                step.prompt_uid,
                step.policy_version,
            )
            if not goes_on:
                yield part
                part = []
        part.append(step)
    if part:
        yield part


def table_of(steps: Sequence[Step]) -> Table:
    """One row for each step, with the column types of Rust's pool."""
    import numpy as np

    def tokens(lists: Sequence[Sequence[int] | Array]) -> Ragged:
        arrays = [np.asarray(ids, dtype=np.uint32) for ids in lists]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
        np.cumsum([len(ids) for ids in arrays], out=offsets[1:])
        return Ragged(np.concatenate(arrays), offsets)

    columns = {
        "prompt_ids": tokens([step.prompt_ids for step in steps]),
        "response_ids": tokens([step.response_ids for step in steps]),
        "reward": np.array([step.reward for step in steps], dtype=np.float32),
        "trajectory_uid": [step.trajectory_uid for step in steps],
        "prompt_uid": [step.prompt_uid for step in steps],
        "step_index": np.array([step.step_index for step in steps], dtype=np.uint32),
        "policy_version": np.array([step.policy_version for step in steps], dtype=np.uint64),
        "is_last": np.array([step.is_last for step in steps], dtype=bool),
        "metadata": [
            json.dumps(step.metadata, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
            for step in steps
        ],
    }
    return Table(rows_of(columns, copy=False))
