"""Makes the calls to a queue for `Client` and `AsyncClient`."""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar

from rolldock import _rolldock
from rolldock.columns import rows_of

if TYPE_CHECKING:
    from rolldock.columns import Array

T = TypeVar("T")


class Call(Generic[T]):
    """A call in progress. To get the result, call `wait`, or await the object in asyncio. `finish` makes the
    result from the value that `pending` returns. Without `finish`, this value is the result.
    """

    def __init__(self, pending: _rolldock.Pending, finish: Callable[[Any], T] | None = None) -> None:
        self._pending = pending
        self._finish = finish

    def _result(self, value: Any) -> T:
        result: T = value if self._finish is None else self._finish(value)
        return result

    def wait(self) -> T:
        """Waits for the result without the GIL. Ctrl-C ends the wait and cancels the call."""
        return self._result(self._pending.wait())

    def __await__(self) -> Generator[Any, None, T]:
        # Programs without an event loop do not need this import.
        import asyncio

        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        def call_loop() -> None:
            # If the loop is closed, no task waits for the call.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake)

        self._pending.when_done(call_loop)
        try:
            yield from done
        except asyncio.CancelledError:
            self._pending.cancel()
            raise
        return self._result(self._pending.result())


@dataclass(frozen=True)
class Share:
    """The share of one consumer, if several consumers take a batch together. Each consumer passes its own
    share to its take. The amount of the take (`rows`, `groups` or `tokens`) is the amount of the whole batch.

    Attributes:
        rank: the number of this data-parallel rank, from 0. Each rank gets different groups. All ranks get
            about the same number of tokens.
        ranks: the number of data-parallel ranks.
        equal_counts: whether all ranks get the same number of groups. The remaining groups stay in the queue.
        member: the number of this consumer among the members of the rank (tensor- or pipeline-parallel),
            from 0.
        members: the number of members of a rank. All members of a rank get the same rows. The rows are
            consumed when all of these members have acked.
    """

    rank: int
    ranks: int
    equal_counts: bool = False
    member: int = 0
    members: int = 1


class TakeOptions(TypedDict, total=False):
    """The options of a take. One of `rows`, `groups`, `tokens` and `only` is required.

    Attributes:
        rows: the maximum number of rows. The rows may belong to any groups.
        groups: the maximum number of groups. Only whole groups are taken, when all of their rows are ready.
        tokens: the maximum number of tokens. Whole groups are taken until the next group would exceed the
            maximum. At least one group is taken.
        only: exactly the rows with these handles.
        at_least: wait until this many groups (or rows, with `rows`) are ready, or until the puts have ended.
            1 by default.
        columns: read only these columns. All by default.
        order: `"fifo"` (oldest first), `"priority"`, `"freshest"` (newest policy version first), or a seed
            for a pseudorandom order. The default is the order that the partition declares.
        min_policy_version: groups whose oldest version is below this version are stale.
        max_staleness: groups whose oldest version is more than this many versions behind the newest version
            of the partition are stale.
        stale: what happens to stale groups: `"skip"` (the default) leaves them, `"drop"` frees them,
            `"deliver"` delivers them too.
        share: the part of this consumer, if several consumers take a batch together.
        holder: a name for this consumer. `inspect` shows the name with the leases of this consumer.
    """

    rows: int
    groups: int
    tokens: int
    only: Sequence[int] | Array
    at_least: int
    columns: Sequence[str]
    order: Literal["fifo", "priority", "freshest"] | int
    min_policy_version: int
    max_staleness: int
    stale: Literal["skip", "drop", "deliver"]
    share: Share
    holder: str


class PutOptions(TypedDict, total=False):
    """The options of a put.

    Attributes:
        group_size: the number of rows of the whole group. Several puts may add rows to a group. The default
            is the number that the partition declares, or else the number of rows of this put.
        sample: the name of the sample to which the rows belong, if a sample may have rows in several puts.
            `group_size` then counts samples.
        sample_is_last: whether these rows complete the sample.
        policy_version: the oldest policy version of the rows.
        priority: the priority of the group. Takes in the order `"priority"` return groups with a greater
            priority first.
        token: a name that makes it safe to repeat the put. A put with the token of an earlier put adds
            nothing and returns the rows of the earlier put. By default each put has a token of its own.
        keys: a key for each row, unique among the existing rows of the partition.
        tags: a JSON value for each row. The queue does not interpret the tags.
        record: a text that the queue stores with the put, as durably as the rows. The queue does not
            interpret the record.
    """

    group_size: int
    sample: str
    sample_is_last: bool
    policy_version: int
    priority: int
    token: str
    keys: Sequence[str]
    tags: Sequence[Any]
    record: str


class DeclareOptions(TypedDict, total=False):
    """The options of a declaration.

    Attributes:
        length_columns: the columns from which the queue counts the tokens of a row. A list counts as its
            length, a whole number as its value.
        group_size: the number of rows of every group. By default each put states the size of its group.
        order: the order of takes that state no order. Its values are those of `order` in `TakeOptions`.
        capacity_bytes: the maximum number of bytes of payload.
        row_bytes_max: the maximum number of bytes of a row.
        durability: what an acknowledged put survives: `"none"`, `"os"` (the death of the process) or
            `"fsync"` (the death of the machine). The default is the durability of the queue.
        on_full: what a put into a full partition does: `"block"` (the default), `"refuse"` or
            `"drop_oldest"`.
        lease_ms: the time that a lease lasts without a renewal, in milliseconds. 600,000 by default.
    """

    length_columns: Sequence[str]
    group_size: int
    order: Literal["fifo", "priority", "freshest"] | int
    capacity_bytes: int
    row_bytes_max: int
    durability: Literal["none", "os", "fsync"]
    on_full: Literal["block", "refuse", "drop_oldest"]
    lease_ms: int


@dataclass(frozen=True)
class KeyedRow:
    """A row that has a key.

    Attributes:
        key: the key of the row.
        handle: the handle of the row, `generation << 32 | slot`.
        group: the group of the row.
        tags: the tags of the row; `None` if the row has no tags.
    """

    key: str
    handle: int
    group: str
    tags: Any


def _order(order: str | int) -> Any:
    return order if isinstance(order, str) else {"random": {"seed": operator.index(order)}}


def handles_of(rows: Sequence[int] | Array) -> list[int]:
    """Handles as a list of numbers."""
    if hasattr(rows, "tolist"):
        listed: list[int] = rows.tolist()
        return listed
    return list(rows)


def strings(what: str, given: Iterable[str]) -> list[str]:
    """Returns a list of strings. A single string, which is an iterable of its letters, is an error."""
    if isinstance(given, str):
        raise TypeError(f"expected a list of {what}, found a single string: write [{given!r}]")
    return list(given)


def connected(url: str, token: str | None, patience_s: float, shared_memory: bool | None) -> _rolldock.Queue:
    """Makes a client of a queue server. If `token` is `None` and `url` is not a `unix:` URL, the token is the
    value of the environment variable `ROLLDOCK_QUEUE_TOKEN`.
    """
    if token is None and not url.startswith("unix:"):
        token = os.environ.get("ROLLDOCK_QUEUE_TOKEN") or None
    return _rolldock.Queue.connect(url, token, patience_s, shared_memory)


def declared(
    queue: _rolldock.Queue,
    name: str,
    tasks: Iterable[str] | Mapping[str, Sequence[str]],
    columns: Mapping[str, Any] | None,
    capacity_rows: int,
    options: DeclareOptions,
) -> Call[None]:
    needs = tasks if isinstance(tasks, Mapping) else dict.fromkeys(strings("tasks", tasks), ())
    spec: dict[str, Any] = {
        "name": name,
        "tasks": [{"name": task, "columns": strings("columns", needed)} for task, needed in needs.items()],
        "capacity_rows": capacity_rows,
        **options,
    }
    if "order" in spec:
        spec["order"] = _order(spec["order"])
    dtypes = [(column, _rolldock.Dtype(dtype)) for column, dtype in (columns or {}).items()]
    return Call(queue.declare(_json(spec), dtypes))


def put(
    queue: _rolldock.Queue, partition: str, group: str, data: Any, wait_s: float | None, options: PutOptions
) -> Call[list[int]]:
    what: dict[str, Any] = {"group": group, **options}
    for name in ("keys", "tags"):
        if name in what:
            what[name] = list(what[name])
    # An embedded queue keeps the arrays that it gets, so arrays that may change are copied first.
    rows = rows_of(data, copy=queue.is_embedded)
    return Call(queue.put(partition, rows, _json(what), _seconds(wait_s)))


def written(
    queue: _rolldock.Queue, partition: str, rows: Sequence[int] | Array, data: Any, overwrite: bool
) -> Call[None]:
    columns = rows_of(data, copy=queue.is_embedded)
    return Call(queue.write(partition, handles_of(rows), columns, overwrite))


def taken(
    queue: _rolldock.Queue, partition: str, task: str, wait_s: float | None, options: TakeOptions
) -> _rolldock.Pending:
    what: dict[str, Any] = {"task": task, **options}
    if "order" in what:
        what["order"] = _order(what["order"])
    if "only" in what:
        what["only"] = handles_of(what["only"])
    if "columns" in what:
        what["columns"] = strings("columns", what["columns"])
    if "share" in what:
        what["share"] = vars(what["share"])
    return queue.take(partition, _json(what), _seconds(wait_s))


def found(queue: _rolldock.Queue, partition: str, keys: Iterable[str] | None) -> Call[list[KeyedRow]]:
    def finish(rows: list[tuple[str, int, str, str]]) -> list[KeyedRow]:
        return [KeyedRow(key, handle, group, json.loads(tags)) for key, handle, group, tags in rows]

    return Call(queue.find(partition, None if keys is None else strings("keys", keys)), finish)


def tagged(queue: _rolldock.Queue, partition: str, tags: Mapping[int, Any]) -> Call[None]:
    return Call(queue.set_tags(partition, [(int(row), _json(value)) for row, value in tags.items()]))


def status(queue: _rolldock.Queue, partition: str, after: int | None, wait_s: float) -> Call[dict[str, Any]]:
    return Call(queue.status(partition, after, wait_s), object_of)


def object_of(text: str) -> dict[str, Any]:
    """Reads a JSON object."""
    read: dict[str, Any] = json.loads(text)
    return read


def objects(text: str) -> list[dict[str, Any]]:
    """Reads a JSON list of objects."""
    read: list[dict[str, Any]] = json.loads(text)
    return read


def names(text: str) -> list[str]:
    """Reads a JSON list of strings."""
    read: list[str] = json.loads(text)
    return read


def _json(value: Any) -> str:
    # Integers of NumPy become integers of JSON.
    return json.dumps(value, default=operator.index)


def _seconds(wait_s: float | None) -> float:
    return math.inf if wait_s is None else wait_s
