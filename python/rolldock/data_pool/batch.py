"""Fetched steps, in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rolldock import _rolldock
from rolldock.table import Batch

if TYPE_CHECKING:
    from rolldock.columns import Array

#: The tag of rows whose group was given up before it was complete.
INCOMPLETE = "incomplete"
#: The column of the importance weight. It exists after a weight was written.
IMPORTANCE_WEIGHT = "importance_weight"


class PoolBatch(Batch):
    """Whole prompt groups that a task holds. They are consumed by `ack` or at the end of a `with` block.

    The groups are in order, oldest first. The trajectories of a group are in the order of their first steps,
    and the steps of a trajectory are ordered by index.
    """

    def __init__(self, lease: _rolldock.Lease, queue: _rolldock.Queue, partition: str) -> None:
        super().__init__(lease, queue, partition)
        self._order = _order(super().groups, self["trajectory_uid"], self["step_index"])
        self._rows = self._rows.picked(self._order)
        self._columns.clear()

    @property
    def handles(self) -> Array:
        """The handle of each row; shape `(rows,)`, uint64."""
        return super().handles[self._order]

    @property
    def policy_versions(self) -> Array:
        """The oldest policy version of each row's group; shape `(rows,)`, uint64."""
        return super().policy_versions[self._order]

    @property
    def groups(self) -> list[str]:
        """The prompt of each row."""
        groups = super().groups
        return [groups[place] for place in self._order]

    @property
    def keys(self) -> list[str | None]:
        """The key of each row."""
        keys = super().keys
        return [keys[place] for place in self._order]

    @property
    def tags(self) -> list[Any]:
        """The tags of each row. Empty if no row has any."""
        tags = super().tags
        return [tags[place] for place in self._order] if tags else []

    @property
    def prompt_uids(self) -> list[str]:
        """The prompts without repetition, in the order of the rows."""
        return [prompt for prompt, _ in groupby(self.groups)]

    @property
    def off_policy(self) -> Array:
        """Whether each step's policy version was too old when it was fetched; shape `(rows,)`, bool."""
        return self.array("policy_version") < self.fresh_from

    @property
    def incomplete(self) -> Array:
        """Whether each row's group was given up before it was complete; shape `(rows,)`, bool."""
        import numpy as np

        tags = self.tags or [None] * len(self)
        return np.array([isinstance(tag, dict) and tag.get(INCOMPLETE) is True for tag in tags], dtype=bool)

    @property
    def importance_weights(self) -> Array:
        """The importance weight of each step, 1 where none was written; shape `(rows,)`, float32."""
        import numpy as np

        if IMPORTANCE_WEIGHT not in self:
            return np.ones(len(self), dtype=np.float32)
        return np.ma.filled(self.array(IMPORTANCE_WEIGHT), np.float32(1))


def _order(groups: Sequence[str], trajectories: Array, steps: Array) -> list[int]:
    """The indices of the rows, ordered by group, trajectory and step."""
    first_of_group: dict[str, int] = {}
    first_of_trajectory: dict[tuple[str, str], int] = {}
    keys: list[tuple[int, int, int, int]] = []
    for place, group in enumerate(groups):
        trajectory = (group, str(trajectories[place]))
        keys.append(
            (
                first_of_group.setdefault(group, place),
                first_of_trajectory.setdefault(trajectory, place),
                int(steps[place]),
                place,
            )
        )
    return [key[-1] for key in sorted(keys)]
