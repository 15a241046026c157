"""Exceptions of the loader. The exceptions of the queue are in `rolldock.errors`."""

from __future__ import annotations

from rolldock.errors import RolldockError


class LoaderError(RolldockError):
    """The base class of the loader's errors. Errors of the queue are not among them."""


class BadRow(LoaderError, ValueError):
    """The columns of a row do not fit together. The message names the row and the column."""


class BadState(LoaderError, ValueError):
    """A state was not made by `state_dict` of a loader of this partition and task."""


class RankLost(LoaderError):
    """Another rank of the job has died, has raised an error, or has closed its loader. Start the job again.
    The queue then redelivers the rows that were in use.
    """
