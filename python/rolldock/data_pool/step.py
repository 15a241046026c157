"""Steps, and their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rolldock.columns import Ragged, rows_of
from rolldock.errors import BadRequest
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

    The other attributes are the columns that rows of runs and of the gateway have, too (`docs/src/rows.md`).
    By default a step is one turn, all of whose tokens are trained. A row may also be a path of several turns:
    `response_ids` then has everything after the first sampled token, and `response_mask` tells what the
    policy sampled and what this row trains.

    Attributes:
        sample_index: the index of the trajectory in its group.
        branch: the index of the path in the trajectory.
        response_mask: 1 for each token of `response_ids` that is trained, else 0. `None` if all are trained.
        rollout_logprobs: a log-probability for each token of `response_ids`, in nats, or none at all.
        turn_starts: the index in `response_ids` of the first sampled token of each turn. If `turn_starts` and
            `turn_ends` are `None`, the step is one turn with all of `response_ids` and the step's reward.
        turn_ends: one past the last sampled token of each turn.
        turn_rewards: a list with the reward of each turn, or `None` for a turn without a reward. The whole
            list is `None` if no turn has a reward.
        finish_reason: `stop`, or `length` at a token limit.
        policy_version_max: the newest policy version of the response's tokens. `None` if it is
            `policy_version`. The column `policy_version_min` has the value of `policy_version`.
        is_reencoded: whether a server encoded the prompt itself. Earlier tokens may then differ from the
            tokens that were sampled.
        end: why the trajectory ended; empty if that is not known.
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
    sample_index: int = 0
    branch: int = 0
    response_mask: Sequence[int] | Array | None = None
    rollout_logprobs: Sequence[float] | Array = ()
    turn_starts: Sequence[int] | Array | None = None
    turn_ends: Sequence[int] | Array | None = None
    turn_rewards: Sequence[float | None] | None = None
    finish_reason: str = "stop"
    policy_version_max: int | None = None
    is_reencoded: bool = False
    end: str = ""

    @property
    def key(self) -> str:
        """The key of the step's row."""
        return f"{self.trajectory_uid}/{self.step_index}"

    @property
    def mask(self) -> Array:
        """1 for each token of `response_ids` that is trained, else 0; shape `(tokens,)`."""
        import numpy as np

        if self.response_mask is None:
            return np.ones(len(self.response_ids), dtype=np.uint8)
        return np.asarray(self.response_mask)

    @property
    def turns(self) -> list[tuple[int, int, float | None]]:
        """The start, the end and the reward of each turn."""
        if self.turn_starts is None or self.turn_ends is None:
            return [(0, len(self.response_ids), self.reward)] if len(self.response_ids) else []
        rewards = [None] * len(self.turn_starts) if self.turn_rewards is None else self.turn_rewards
        return list(zip(self.turn_starts, self.turn_ends, rewards, strict=True))

    def check(self) -> None:
        """Checks that the attributes fit together.

        Raises:
            BadRequest: they do not.
        """
        tokens = len(self.response_ids)

        def require(holds: bool, expected: str) -> None:
            if not holds:
                raise BadRequest(
                    f"step={self.step_index} of trajectory={self.trajectory_uid}: expected {expected}"
                )

        require(_are_ids(self.prompt_ids), "prompt_ids of whole numbers from 0 to 2**32 - 1")
        require(_are_ids(self.response_ids), "response_ids of whole numbers from 0 to 2**32 - 1")
        mask = self.mask
        fits = len(mask) == tokens and bool(((mask == 0) | (mask == 1)).all())
        require(fits, f"response_mask of 0 and 1 for each of tokens={tokens}")
        logprobs = len(self.rollout_logprobs)
        require(
            logprobs in (0, tokens), f"rollout_logprobs for none or all of tokens={tokens}, found {logprobs}"
        )
        given = [
            values for values in (self.turn_starts, self.turn_ends, self.turn_rewards) if values is not None
        ]
        are_places = (self.turn_starts is None) == (self.turn_ends is None)
        are_whole = self.turn_starts is not None or self.turn_rewards is None
        require(
            are_places and are_whole and len({len(values) for values in given}) <= 1,
            "turn_starts and turn_ends, and turn_rewards for all of them or not at all",
        )
        last = 0
        for start, end, _ in self.turns:
            require(
                last <= start < end <= tokens,
                f"turns one after the other in {last}..{tokens}, found {start}..{end}",
            )
            last = end
        require(
            self.finish_reason in ("stop", "length"),
            f"finish_reason of stop or length, found {self.finish_reason!r}",
        )
        newest = self.policy_version_max
        require(
            newest is None or newest >= self.policy_version,
            f"policy_version_max of {self.policy_version} or more, found {newest}",
        )


def _are_ids(values: Any) -> bool:
    import numpy as np

    ids = np.asarray(values)
    return not ids.size or (ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() < 2**32)


def parts_of(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Divides steps into runs, each of which may be one put: steps of one trajectory and version, up to the
    last step of the trajectory."""
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

    def lists(of: Callable[[Step], Any], dtype: Any) -> Ragged:
        arrays = [np.asarray(of(step), dtype=dtype) for step in steps]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
        np.cumsum([len(values) for values in arrays], out=offsets[1:])
        return Ragged(np.concatenate(arrays), offsets)

    rewards = lists(lambda step: [reward for _, _, reward in step.turns], object)
    is_absent = np.array([reward is None for reward in rewards.values], dtype=bool)
    values = np.array([reward or 0 for reward in rewards.values], dtype=np.float32)
    turn_rewards = Ragged(np.ma.masked_array(values, is_absent), rewards.offsets)
    columns = {
        "prompt_ids": lists(lambda step: step.prompt_ids, np.uint32),
        "response_ids": lists(lambda step: step.response_ids, np.uint32),
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
        "sample_index": np.array([step.sample_index for step in steps], dtype=np.uint32),
        "branch": np.array([step.branch for step in steps], dtype=np.uint32),
        "response_mask": lists(lambda step: step.mask, np.uint8),
        "rollout_logprobs": lists(lambda step: step.rollout_logprobs, np.float32),
        "turn_starts": lists(lambda step: [start for start, _, _ in step.turns], np.uint32),
        "turn_ends": lists(lambda step: [end for _, end, _ in step.turns], np.uint32),
        "turn_rewards": turn_rewards,
        "finish_reason": [step.finish_reason for step in steps],
        "policy_version_min": np.array([step.policy_version for step in steps], dtype=np.uint64),
        "policy_version_max": np.array(
            [
                step.policy_version if step.policy_version_max is None else step.policy_version_max
                for step in steps
            ],
            dtype=np.uint64,
        ),
        "is_reencoded": np.array([step.is_reencoded for step in steps], dtype=bool),
        "end": [step.end for step in steps],
    }
    return Table(rows_of(columns, copy=False))
