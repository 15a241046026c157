"""Rows by column, and batches: rows under a lease."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from rolldock import _rolldock
from rolldock._calls import Call, written
from rolldock.columns import Ragged, padded_torch, to_numpy, to_torch
from rolldock.errors import QueueError

if TYPE_CHECKING:
    from types import TracebackType

    from torch import Tensor
    from typing_extensions import Self

    from rolldock.columns import Array


class Table:
    """Rows by column. Any library that reads the Arrow PyCapsule interface can read a table:
    `pyarrow.table(table)`, `polars.DataFrame(table)`, `arro3.core.Table(table)`.

    The values are shared with the queue, not copied: do not write to them. A piece is a run of rows that are
    stored together, such as the rows of one put. If the rows are in several pieces, the first read of a
    column copies it once, into one array. `pieces()` returns the pieces, whose columns are never copied.
    """

    def __init__(self, rows: _rolldock.Rows) -> None:
        self._rows = rows
        self._columns: dict[str, _rolldock.Column] = {}

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return self._rows.names

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of the columns."""
        return iter(self.names)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {self.column(name).dtype}" for name in self.names)
        return f"{type(self).__name__}(rows={len(self)}, columns={{{columns}}})"

    def column(self, name: str) -> _rolldock.Column:
        """Returns a column as an Arrow array (`__arrow_c_array__`).

        Raises:
            KeyError: the rows have no such column.
        """
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = self._rows.column(name)
        return column

    def __getitem__(self, name: str) -> Any:
        """Returns the values of a column in a form of NumPy. `array` and `ragged` return them with a static
        type.

        | Arrow | result |
        |---|---|
        | numbers | array of shape `(rows,)`; a masked array if some are null |
        | booleans | array of shape `(rows,)`, unpacked from bits |
        | lists of fixed size | array of shape `(rows, size, ...)` |
        | lists | `Ragged` |
        | strings, bytes | array of objects, shape `(rows,)`, with `None` for nulls |
        | structs | dict of their fields |

        Raises:
            KeyError: the rows have no such column.
        """
        return to_numpy(self.column(name))

    def array(self, name: str) -> Array:
        """Returns a column with one value, or one array of fixed shape, in each row; shape `(rows, ...)`.

        Raises:
            TypeError: the column has lists of different lengths, or structs.
        """
        values = to_numpy(self.column(name))
        if isinstance(values, Ragged | dict):
            raise TypeError(
                f"expected a column without lists and structs, found {name}: {self.column(name).dtype}"
            )
        return values

    def ragged(self, name: str) -> Ragged:
        """Returns a column of lists of different lengths.

        Raises:
            TypeError: the column has no lists.
        """
        values = to_numpy(self.column(name))
        if not isinstance(values, Ragged):
            raise TypeError(f"expected a column of lists, found {name}: {self.column(name).dtype}")
        return values

    def to_numpy(self) -> dict[str, Any]:
        """Returns all columns, as `table[name]` does."""
        return {name: self[name] for name in self.names}

    def torch(self, name: str) -> Tensor:
        """Returns a column as a tensor that shares its memory: shape `(rows, ...)`, or `(rows, ragged, ...)`
        in the jagged layout for a column of lists. The layout depends on the type of the column, never on its
        values.

        Raises:
            TypeError: the values are not numbers.
            ValueError: some values are null.
        """
        return to_torch(self.column(name))

    def padded_torch(
        self,
        name: str,
        fill: float = 0,
        length: int | None = None,
        side: Literal["right", "left"] = "right",
    ) -> tuple[Tensor, Tensor]:
        """Copies a column of lists into a tensor of shape `(rows, length, ...)`, with a mask of shape
        `(rows, length)` that is true for items. It has the arguments and errors of `Ragged.padded`."""
        return padded_torch(self.column(name), fill, length, side)

    def pieces(self) -> list[Table]:
        """Returns the runs of rows that are stored together. Their columns are views of the queue's
        memory."""
        return [Table(piece) for piece in self._rows.pieces()]

    def __arrow_c_schema__(self) -> object:
        return self._rows.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return self._rows.__arrow_c_array__(requested_schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


class _Leased(Table):
    """Rows under a lease, with their labels."""

    def __init__(self, lease: _rolldock.Lease, queue: _rolldock.Queue, partition: str) -> None:
        super().__init__(lease.rows)
        self._lease = lease
        self._queue = queue
        self._has_ended = False
        #: The partition of the rows.
        self.partition = partition

    @property
    def lease_id(self) -> int:
        """The number of the lease."""
        return self._lease.id

    @property
    def handles(self) -> Array:
        """The handle of each row, `generation << 32 | slot`; shape `(rows,)`, uint64."""
        import numpy as np

        return np.asarray(self._lease.handles)

    @property
    def policy_versions(self) -> Array:
        """The oldest policy version of each row's group; shape `(rows,)`, uint64."""
        import numpy as np

        return np.asarray(self._lease.policy_versions)

    @property
    def groups(self) -> list[str]:
        """The group of each row."""
        return self._lease.groups

    @property
    def keys(self) -> list[str | None]:
        """The key of each row. Empty if no row has one."""
        return self._lease.keys

    @property
    def tags(self) -> list[Any]:
        """The tags of each row, `None` for a row without tags. Empty if no row has any."""
        return [json.loads(tags) for tags in self._lease.tags]

    @property
    def fresh_from(self) -> int:
        """The oldest policy version that counted as fresh when the rows were taken."""
        return self._lease.fresh_from

    @property
    def is_lost(self) -> bool:
        """Whether the lease expired although it was being renewed. Its rows are delivered again."""
        return self._lease.is_lost

    def _end(self, pending: _rolldock.Pending) -> Call[None]:
        self._has_ended = True
        return Call(pending)


class Batch(_Leased):
    """Rows that this process holds for a task.

    Use it as a context manager: the lease is renewed in the background while the block runs. The rows are
    acked at the end of the block, and given back if the block raises. `ack` and `nack` may be called earlier
    in the block, or without a block. A batch that is dropped gives its rows back.
    """

    def __enter__(self) -> Self:
        self._lease.keep()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_ended:
            return
        if error is None:
            self.ack()
            return
        try:
            self.nack()
        except QueueError as failed:
            # The rows are delivered again when the lease expires. The caller must see the error of the block.
            _note(error, failed)

    def ack(self) -> None:
        """Consumes the rows for the task. When this returns, the ack is as durable as the queue.

        Raises:
            LeaseGone: the lease has expired, or has ended before. The rows are delivered again.
        """
        self._end(self._lease.ack()).wait()

    def nack(self) -> None:
        """Gives the rows back, so that they can be taken again.

        Raises:
            LeaseGone: the lease has expired, or has ended before.
        """
        self._end(self._lease.nack()).wait()

    def renew(self) -> None:
        """Makes the lease last a full term from now. In a `with` block this happens in the background.

        Raises:
            LeaseGone: the lease has expired, or has ended before.
        """
        Call[None](self._lease.renew()).wait()

    def write(self, data: Any, *, overwrite: bool = False) -> None:
        """Writes columns of these rows: `data` as in `Client.put`, in the order of the rows.

        Raises:
            ColumnExists: the rows have a column already, and `overwrite` is false.
        """
        written(self._queue, self.partition, self.handles, data, overwrite).wait()


class AsyncBatch(_Leased):
    """`Batch` for asyncio: `async with batch:`, and coroutines instead of functions."""

    async def __aenter__(self) -> Self:
        self._lease.keep()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_ended:
            return
        if error is None:
            await self.ack()
            return
        try:
            await self.nack()
        except QueueError as failed:
            _note(error, failed)

    async def ack(self) -> None:
        """As `Batch.ack`."""
        await self._end(self._lease.ack())

    async def nack(self) -> None:
        """As `Batch.nack`."""
        await self._end(self._lease.nack())

    async def renew(self) -> None:
        """As `Batch.renew`."""
        await Call[None](self._lease.renew())

    async def write(self, data: Any, *, overwrite: bool = False) -> None:
        """As `Batch.write`."""
        await written(self._queue, self.partition, self.handles, data, overwrite)


def _note(error: BaseException, failed: QueueError) -> None:
    if hasattr(error, "add_note"):
        error.add_note(f"its rows were not given back: {failed}; they come again when their lease expires")
