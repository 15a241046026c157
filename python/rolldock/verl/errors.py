"""Exceptions of this package. The exceptions of the queue are in `rolldock.errors`."""

from __future__ import annotations

from rolldock.errors import RolldockError


class BadBatch(RolldockError, ValueError):
    """Rows cannot become a batch of verl, or a batch cannot become columns. The message names the column. If
    one row is the cause, the message also names its group and handle."""


class RolloutEnded(RolldockError):
    """The run has ended or cannot be reached, so prompts of the trainer get no trajectories."""
