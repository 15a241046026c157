"""The data of samples: rows of one partition of the queue."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensordict import TensorDict

from rolldock import errors
from rolldock.client import Client
from rolldock.transfer_queue.errors import StorageKeyNotFoundError
from rolldock.transfer_queue.fields import Field, column_of, decoded, encoded
from rolldock.transfer_queue.server import DATA

if TYPE_CHECKING:
    import torch

#: The maximum number of rows if the configuration sets no limit.
_CAPACITY_ROWS = 2**31


class Store:
    """Reads and writes the data of samples.

    Args:
        queue: the queue.
    """

    def __init__(self, queue: Client) -> None:
        self._queue = queue

    def declare(self, capacity_rows: int | None) -> None:
        """Declares the partition, for the process that called `init` first."""
        capacity = _CAPACITY_ROWS if capacity_rows is None else capacity_rows
        # Rows stay until they are cleared: no task consumes them.
        self._queue.declare(DATA, tasks=("none",), capacity_rows=capacity, on_full="refuse")

    def write(
        self, fields: Mapping[str, Field], indexes: Sequence[int], rows: Sequence[int | None], group: str
    ) -> list[int]:
        """Writes fields of samples.

        Args:
            fields: the fields, with one value for each sample.
            indexes: the index of each sample, which is the key of its row.
            rows: the handle of each sample's row; `None` for samples without data.
            group: the name of the group of new rows in the queue.

        Returns:
            The handle of each sample's row.
        """
        written: list[int] = [0 if row is None else row for row in rows]
        new = [place for place, row in enumerate(rows) if row is None]
        old = [place for place, row in enumerate(rows) if row is not None]
        if new:
            keys = [str(indexes[place]) for place in new]
            data = _columns(fields, new, len(rows))
            try:
                put = self._queue.put(DATA, f"{group}/{uuid.uuid4().hex}", data, keys=keys)
            except errors.KeyExists:
                # Another put of the same samples was faster, so their rows exist.
                return self.write(fields, indexes, [self._found(str(one)) for one in indexes], group)
            for place, row in zip(new, put, strict=True):
                written[place] = row
        if old:
            data = _columns(fields, old, len(rows))
            self._queue.write(DATA, [written[place] for place in old], data, overwrite=True)
        return written

    def _found(self, key: str) -> int | None:
        try:
            return self._queue.find(DATA, [key])[0].handle
        except errors.UnknownKey:
            return None

    def read(
        self, rows: Sequence[int], fields: Mapping[str, tuple[torch.dtype | None, Sequence[Any]]]
    ) -> TensorDict:
        """Reads fields of rows.

        Args:
            rows: the handle of each row.
            fields: for each field its type and the shape of each sample.

        Raises:
            StorageKeyNotFoundError: a row was cleared.
        """
        columns = {name: column_of(name, dtype) for name, (dtype, _) in fields.items()}
        try:
            table = self._queue.get(DATA, rows, columns=list(columns.values()))
        except (errors.StaleHandle, errors.ColumnMissing) as error:
            raise StorageKeyNotFoundError(
                f"the samples were cleared while they were read: {error}"
            ) from error
        values = {name: decoded(table, columns[name], *field) for name, field in fields.items()}
        return TensorDict(values, batch_size=len(rows))

    def clear(self, rows: Sequence[int]) -> None:
        """Frees rows."""
        if rows:
            self._queue.clear(DATA, rows)

    def clear_all(self) -> None:
        """Frees the rows of all samples."""
        self._queue.clear_all(DATA)


def _columns(fields: Mapping[str, Field], places: Sequence[int], samples: int) -> dict[str, Any]:
    picked = None if len(places) == samples else places
    return {column_of(name, field.dtype): encoded(field, picked) for name, field in fields.items()}
