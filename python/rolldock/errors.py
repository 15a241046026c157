"""Exceptions with the stable codes of the queue's contract.

Each code has a class of its own, below one of the five classes that say what a caller can do:

| class | what a caller can do |
|---|---|
| `RetryableError` | the call may succeed soon, or the rows are delivered again: continue |
| `BackpressureError` | wait, and send the call again |
| `ClientError` | the call is wrong: fix it |
| `FaultError` | the server or its disk has a fault: tell the operator |
| `CancelledError` | the partition or the queue takes no more puts |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class RolldockError(Exception):
    """Any error of Rolldock."""


class QueueError(RolldockError):
    """An error of the queue. `details` are its fields, as the HTTP interface has them."""

    code: ClassVar[str] = "unknown"

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details: Mapping[str, Any] = details or {}

    def __reduce__(self) -> tuple[type[QueueError], tuple[str, Mapping[str, Any]]]:
        return type(self), (str(self), dict(self.details))


class RetryableError(QueueError):
    """The call may succeed soon, or its rows are delivered again."""


class BackpressureError(QueueError):
    """The queue is full, or nothing was ready in time. Try again later."""


class ClientError(QueueError):
    """The call is wrong. Repeating it does not help."""


class FaultError(QueueError):
    """The disk, the queue or Arrow failed."""


class CancelledError(QueueError):
    """The partition or the queue was closed."""


class InUse(RetryableError):
    """Another process has the directory open."""

    code = "in_use"


class NoQueue(ClientError):
    """The directory has no queue."""

    code = "no_queue"


class JournalMissing(FaultError):
    """The journal is missing or empty, and the directory has other files of a queue."""

    code = "journal_missing"


class JournalCut(FaultError):
    """The end of the journal is missing: it is shorter than its noted length."""

    code = "journal_cut"


class UnknownPartition(ClientError):
    """No partition has this name."""

    code = "unknown_partition"


class PartitionExists(ClientError):
    """A partition of this name exists, or another call is declaring or restoring it."""

    code = "partition_exists"


class BadSnapshot(ClientError):
    """The snapshot is incomplete or damaged."""

    code = "bad_snapshot"


class UnknownTask(ClientError):
    """The partition has no such task."""

    code = "unknown_task"


class UnknownColumn(ClientError):
    """The partition has no such column."""

    code = "unknown_column"


class DeclaredOtherwise(ClientError):
    """The declaration of a partition or a group differs from the existing one, or is invalid."""

    code = "declared_otherwise"


class WrongType(ClientError):
    """The type of a column differs from its type so far."""

    code = "wrong_type"


class ColumnExists(ClientError):
    """The row already has this column."""

    code = "column_exists"


class ColumnMissing(ClientError):
    """A row does not have the requested column yet."""

    code = "column_missing"


class GroupOverflow(ClientError):
    """The put would give the group more rows than its declared size."""

    code = "group_overflow"


class TooLarge(ClientError):
    """The put has more rows than the partition can ever hold."""

    code = "too_large"


class Full(BackpressureError):
    """The partition is full and refuses puts."""

    code = "full"


class DiskFull(BackpressureError):
    """The disk of the queue's directory is full."""

    code = "disk_full"


class OutOfFiles(BackpressureError):
    """No file descriptor was left for the file."""

    code = "out_of_files"


class KeyExists(ClientError):
    """Another row has this key: a row of the partition, or an earlier row of the put."""

    code = "key_exists"


class UnknownKey(ClientError):
    """No row has the key."""

    code = "unknown_key"


class RowTooLong(ClientError):
    """A row is longer than the partition's limit."""

    code = "row_too_long"


class TooManyBytes(ClientError):
    """The put has more bytes than the partition can ever hold."""

    code = "too_many_bytes"


class RowConsumed(ClientError):
    """A take requested a row that its task has already acked."""

    code = "row_consumed"


class GroupClosed(ClientError):
    """The group of the rows is closed: it was complete, was given up, or is gone."""

    code = "group_closed"


class SampleClosed(ClientError):
    """The sample of the rows is complete."""

    code = "sample_closed"


class UnknownSample(ClientError):
    """No existing group has this sample."""

    code = "unknown_sample"


class StepDiffers(ClientError):
    """The step exists with different contents."""

    code = "step_differs"


class RecordsFull(BackpressureError):
    """The owner's records have reached their maximum size."""

    code = "records_full"


class ChunkGone(RetryableError):
    """The payload was freed or moved in the meantime."""

    code = "chunk_gone"


class Deadline(BackpressureError, TimeoutError):
    """A wait reached its deadline."""

    code = "deadline"


class StaleHandle(ClientError):
    """The handle belongs to a row that was freed."""

    code = "stale_handle"


class LeaseGone(RetryableError):
    """The lease has expired, or was acked or nacked before."""

    code = "lease_gone"


class Closed(CancelledError):
    """The partition or the queue is closed and takes no more changes."""

    code = "closed"


class Empty(ClientError):
    """A call needs at least one row, group or batch."""

    code = "empty"


class ReadOnly(ClientError):
    """The queue was opened read-only."""

    code = "read_only"


class Corrupt(FaultError):
    """The bytes of a file differ from the bytes that were written."""

    code = "corrupt"


class Io(FaultError):
    """The operating system reported an error."""

    code = "io"


class BadRequest(ClientError):
    """The request is invalid."""

    code = "bad_request"


class UnknownPath(ClientError):
    """The server has no such path."""

    code = "unknown_path"


class WrongMethod(ClientError):
    """The server has this path, but not with this method."""

    code = "wrong_method"


class BodyTooLarge(ClientError):
    """The body of a request or response exceeds its limit."""

    code = "body_too_large"


class Unauthorized(ClientError):
    """The bearer token is missing or wrong."""

    code = "unauthorized"


class UnknownUnit(ClientError):
    """No storage unit has this name."""

    code = "unknown_unit"


class UnitAway(RetryableError):
    """The storage unit does not answer."""

    code = "unit_away"


class Stopping(RetryableError):
    """The server stopped before it had a response."""

    code = "stopping"


class Unreachable(RetryableError):
    """No server answers at the address, or the server there does not serve a queue."""

    code = "unreachable"


class Arrow(FaultError):
    """Arrow reported an error."""

    code = "arrow"


class Forked(ClientError):
    """The object belongs to the parent process. Open a new client after a fork."""

    code = "forked"


class PolicyError(RolldockError):
    """An error of the run's policy listener. `code` is its stable code, `details` are its fields."""

    def __init__(self, message: str, code: str = "unknown", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details: Mapping[str, Any] = details or {}

    def __reduce__(self) -> tuple[type[PolicyError], tuple[str, str, Mapping[str, Any]]]:
        return type(self), (str(self), self.code, dict(self.details))


class NotYet(PolicyError, TimeoutError):
    """The servers did not get the version in time."""


def _classes(base: type[QueueError]) -> Iterator[type[QueueError]]:
    for derived in base.__subclasses__():
        yield derived
        yield from _classes(derived)


#: The class of each code.
BY_CODE: Mapping[str, type[QueueError]] = {
    derived.code: derived for derived in _classes(QueueError) if "code" in vars(derived)
}

_KINDS: Mapping[str, type[QueueError]] = {
    "retryable": RetryableError,
    "backpressure": BackpressureError,
    "client": ClientError,
    "fault": FaultError,
    "cancelled": CancelledError,
}


def make(code: str, kind: str, message: str, details: str) -> QueueError:
    """Makes the exception for an error. A code without a class gets its kind's class. `details` is JSON."""
    fields = json.loads(details)
    return BY_CODE.get(code, _KINDS.get(kind, QueueError))(message, fields)
