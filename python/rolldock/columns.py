"""Columns of rows: NumPy arrays, torch tensors and Arrow arrays, in both directions."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rolldock import _rolldock

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    Array: TypeAlias = npt.NDArray[Any]
    #: The values of a column: an array with one value or one array of fixed shape for each row; lists of
    #: different lengths; or the fields of structs.
    Values: TypeAlias = Array | "Ragged" | "dict[str, Values]"

BFLOAT16 = "rolldock.bfloat16"
_OFFSET_MAX = 2**31 - 1


class Ragged:
    """Lists of different lengths, without a copy: row `i` is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: the items of all lists, one after the other. Their array has the shape `(items,)`, or
            `(items, ...)` if each item is an array. They are `Ragged` for lists of lists.
        offsets: shape `(rows + 1,)`, int32 or int64. The first need not be 0.
        nulls: shape `(rows,)`, true where there is no list; `None` if every row has one.
    """

    __slots__ = ("nulls", "offsets", "values")

    def __init__(self, values: Any, offsets: Array, nulls: Array | None = None) -> None:
        self.values: Any = values
        self.offsets = offsets
        self.nulls = nulls

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        """Returns the list of a row: a view of `values`."""
        rows = len(self)
        if not -rows <= row < rows:
            raise IndexError(f"row {row} of {rows}")
        row %= rows
        return _slice(self.values, int(self.offsets[row]), int(self.offsets[row + 1]))

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"Ragged(rows={len(self)}, items={int(self.offsets[-1] - self.offsets[0])})"

    @property
    def lengths(self) -> Array:
        """The number of items of each row, shape `(rows,)`, int64."""
        import numpy as np

        return np.diff(self.offsets).astype(np.int64)

    def flat(self) -> Array:
        """Returns the items of these rows, shape `(items, ...)`: a view of `values`."""
        items = _slice(self.values, int(self.offsets[0]), int(self.offsets[-1]))
        if isinstance(items, Ragged | dict):
            raise TypeError("expected lists of numbers, found lists of lists or of structs")
        return items

    def to_list(self) -> list[Any]:
        """Returns the list of each row: views of `values`."""
        return list(self)

    def padded(
        self, fill: float = 0, length: int | None = None, side: Literal["right", "left"] = "right"
    ) -> tuple[Array, Array]:
        """Copies the lists into one array.

        Args:
            fill: the value of positions without an item.
            length: the number of columns. By default that of the longest list.
            side: the side of the items on which `fill` is added.

        Returns:
            An array of shape `(rows, length, ...)`, and a mask of shape `(rows, length)` that is true for
            items.

        Raises:
            ValueError: a list is longer than `length`, or an item is null.
        """
        import numpy as np

        flat, lengths = self.flat(), self.lengths
        if np.ma.is_masked(flat):
            nulls = int(np.ma.getmaskarray(flat).sum())
            raise ValueError(f"expected a value in every item, found nulls={nulls}")
        longest = int(lengths.max()) if len(lengths) else 0
        length = longest if length is None else length
        if longest > length:
            raise ValueError(f"expected lists of at most {length} items, found {longest}")
        places = np.arange(length)
        starts = length - lengths if side == "left" else np.zeros_like(lengths)
        mask = (places >= starts[:, None]) & (places < (starts + lengths)[:, None])
        padded = np.full((len(self), length, *flat.shape[1:]), fill, dtype=flat.dtype)
        padded[mask] = flat
        return padded, mask


def _slice(values: Values, start: int, end: int) -> Values:
    if isinstance(values, Ragged):
        nulls = None if values.nulls is None else values.nulls[start:end]
        return Ragged(values.values, values.offsets[start : end + 1], nulls)
    if isinstance(values, dict):
        return {name: _slice(field, start, end) for name, field in values.items()}
    return values[start:end]


def to_numpy(column: _rolldock.Column) -> Values:
    """Returns the values of a column. Numbers and offsets are not copied, and are read-only."""
    import numpy as np

    kind = column.kind
    if kind in ("number", "boolean", "fixed_list"):
        return _masked(np.asarray(column.values()), column.nulls())
    if kind in ("string", "binary"):
        words = np.empty(len(column), dtype=object)
        words[:] = column.words()
        return words
    if kind == "list":
        nulls = column.nulls()
        offsets = np.asarray(column.offsets())
        return Ragged(to_numpy(column.items()), offsets, None if nulls is None else np.asarray(nulls))
    if kind == "struct":
        return {name: to_numpy(field) for name, field in column.fields()}
    raise TypeError(f"a column of dtype={column.dtype} has no form in NumPy; read the rows through Arrow")


def _masked(values: Array, nulls: _rolldock.Buffer | None) -> Array:
    import numpy as np

    if nulls is None:
        return values
    mask = np.asarray(nulls)
    if mask.ndim < values.ndim:
        mask = np.broadcast_to(mask.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    masked: Array = np.ma.MaskedArray(values, mask)
    return masked


def to_torch(column: _rolldock.Column) -> torch.Tensor:
    """Returns the values of a column as a tensor that shares their memory. Do not write to it.

    Lists become a nested tensor of the jagged layout, with the shape `(rows, ragged, ...)`.

    Raises:
        TypeError: the values are not numbers.
        ValueError: some values are null.
    """
    import torch

    if column.nulls() is not None:
        raise ValueError(f"expected values in every row, found nulls in a column of dtype={column.dtype}")
    kind = column.kind
    if kind in ("number", "boolean", "fixed_list"):
        return _from_dlpack(column)
    if kind != "list":
        raise TypeError(f"a column of dtype={column.dtype} has no form in torch")
    items = column.items()
    if items.kind not in ("number", "boolean", "fixed_list") or items.nulls() is not None:
        raise TypeError(f"a column of dtype={column.dtype} has no form in torch")
    offsets = torch.from_dlpack(column.offsets()).to(torch.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    return torch.nested.nested_tensor_from_jagged(_from_dlpack(items)[first:last], offsets - first)


def _from_dlpack(column: _rolldock.Column) -> torch.Tensor:
    import torch

    tensor = torch.from_dlpack(column.values())
    return tensor.view(torch.bfloat16) if column.extension == BFLOAT16 else tensor


def padded_torch(
    column: _rolldock.Column, fill: float, length: int | None, side: Literal["right", "left"]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies lists into one tensor of shape `(rows, length, ...)`, with a mask of shape `(rows, length)`."""
    import torch

    ragged = to_numpy(column)
    if not isinstance(ragged, Ragged):
        raise TypeError(f"expected a column of lists, found dtype={column.dtype}")
    is_bfloat16 = column.items().extension == BFLOAT16
    if is_bfloat16:
        fill = int(torch.tensor(fill, dtype=torch.bfloat16).view(torch.int16).item()) & 0xFFFF
    padded, mask = ragged.padded(fill, length, side)
    tensor = torch.from_numpy(padded)
    if is_bfloat16:
        tensor = tensor.view(torch.bfloat16)
    return tensor, torch.from_numpy(mask)


def rows_of(data: Any, *, copy: bool) -> _rolldock.Rows:
    """Returns rows of a mapping from names to columns, or of anything with the Arrow PyCapsule interface.

    Args:
        data: a mapping (a TensorDict too), a table, a record batch or a data frame.
        copy: whether arrays of NumPy and torch are copied. Arrays that are not copied must not change until
            the rows are put.
    """
    if isinstance(data, _rolldock.Rows):
        return data
    if not isinstance(data, Mapping):
        imported = _rolldock.Rows.from_arrow(data)
        if imported is not None:
            return imported
        if not hasattr(data, "keys"):
            raise TypeError(f"expected a mapping of columns or rows of Arrow, found {type(data).__name__}")
    names = [str(name) for name in data.keys()]  # noqa: SIM118 (a TensorDict iterates over its rows)
    columns = [_named(name, data[name], copy) for name in names]
    return _rolldock.Rows.from_columns(names, columns)


def _named(name: str, values: Any, copy: bool) -> _rolldock.Column:
    try:
        return from_values(values, copy=copy)
    except TypeError as error:
        raise TypeError(f"column={name}: {error}") from error
    except ValueError as error:
        # Its class may be a derived one, such as `UnicodeEncodeError`, whose arguments are others.
        raise ValueError(f"column={name}: {error}") from error


def from_values(values: Any, *, copy: bool) -> _rolldock.Column:
    """Returns a column of an array, a tensor, `Ragged`, an Arrow array, or a list of numbers, strings, bytes,
    or arrays of different lengths. Only numbers need NumPy."""
    if isinstance(values, _rolldock.Column):
        return values
    if isinstance(values, Ragged):
        column = _rolldock.Column.from_lists(from_values(values.values, copy=copy), values.offsets)
        return column if values.nulls is None else column.with_nulls(values.nulls)
    if type(values).__module__.partition(".")[0] == "torch":
        return _from_torch(values, copy)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(values, numpy.ndarray):
        return _from_array(values, copy)
    imported = _rolldock.Column.from_arrow(values)
    if imported is not None:
        return imported
    if hasattr(values, "__dlpack__"):
        import numpy as np

        return _from_array(np.from_dlpack(values), copy)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return _from_sequence(values, copy)
    raise TypeError(f"expected an array or a list of values, found {type(values).__name__}")


def _from_array(values: np.ndarray[Any, Any], copy: bool) -> _rolldock.Column:
    import numpy as np

    if values.ndim == 0:
        raise ValueError("expected an array with one value for each row, found a single value")
    if values.dtype.kind in "OUS":
        return _from_sequence(values.tolist(), copy)
    mask = None
    if isinstance(values, np.ma.MaskedArray):
        if values.ndim > 1:
            raise ValueError("expected a masked array of one dimension; mask rows with Ragged instead")
        mask, values = np.ma.getmaskarray(values), np.asarray(values.data)
    native = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    column = _rolldock.Column.from_numpy(native, copy and np.may_share_memory(native, values))
    return column if mask is None else column.with_nulls(mask)


def _from_torch(values: torch.Tensor, copy: bool) -> _rolldock.Column:
    import torch

    values = values.detach().cpu()
    if values.is_nested:
        ragged = getattr(values, "_ragged_idx", 1)
        if ragged != 1:
            raise ValueError(f"expected a nested tensor with the ragged dimension 1, found {ragged}")
        if values.layout != torch.jagged or values.lengths() is not None:
            # The values of such a tensor have gaps between the rows.
            values = torch.nested.as_nested_tensor(list(values.unbind()), layout=torch.jagged)
        items = from_values(values.values(), copy=copy)
        return _rolldock.Column.from_lists(items, values.offsets().numpy().astype("int32"))
    values = values.contiguous()
    if values.dtype == torch.bfloat16:
        return _from_array(values.view(torch.int16).numpy().view("uint16"), copy).with_extension(BFLOAT16)
    return _from_array(values.numpy(), copy)


def _from_sequence(values: Sequence[Any], copy: bool) -> _rolldock.Column:
    known = next((value for value in values if value is not None), None)
    if isinstance(known, str):
        return _rolldock.Column.from_strings(list(values))
    if isinstance(known, bytes):
        return _rolldock.Column.from_binaries(list(values))
    if known is None:
        raise ValueError("expected a value that tells the type of the column, found none")
    if any(value is None for value in values):
        raise ValueError("expected a value in every row; use a masked array for numbers with nulls")
    import numpy as np

    if isinstance(known, bool | int | float | np.generic):
        # NumPy shares the memory of other sequences, such as `array.array`.
        return _from_array(_numbers(values), copy and not isinstance(values, list | tuple))
    return _from_lists(values, copy)


def _numbers(values: Sequence[Any]) -> Array:
    """Returns an array of these numbers. Raises an error if NumPy would change some of them."""
    import numpy as np

    array: Array = np.asarray(values)
    if array.dtype.kind in "OUS":
        found = " and ".join(sorted({type(value).__name__ for value in values}))
        raise TypeError(f"expected numbers that fit into one type of 64 bits or less, found {found}")
    if array.dtype.kind == "f" and not any(isinstance(value, float | np.floating) for value in values):
        raise ValueError("expected integers that fit into one type of 64 bits, found some that do not")
    return array


def _from_lists(rows: Sequence[Any], copy: bool) -> _rolldock.Column:
    """Joins the lists of rows. The offsets are int32, whatever the lengths are."""
    import numpy as np

    for kind in {type(row) for row in rows}:
        if issubclass(kind, Mapping | Set):
            raise TypeError(f"expected lists or arrays, found {kind.__name__}")
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if offsets[-1] > _OFFSET_MAX:
        raise ValueError(
            f"expected at most {_OFFSET_MAX} items; give Ragged with int64 offsets for a large_list"
        )
    filled = [row for row in rows if len(row)]
    if not filled:
        filled = [row for row in rows if hasattr(row, "dtype")][:1]
        if not filled:
            raise ValueError(
                "expected an array or an item that tells the type of the lists, found empty lists"
            )
    if type(filled[0]).__module__.partition(".")[0] == "torch":
        import torch

        tensors = [torch.as_tensor(row).detach().cpu() for row in filled]
        _check_dtypes(tensor.dtype for tensor in tensors)
        items = _from_torch(torch.cat(tensors), False)
    elif isinstance(filled[0], np.ndarray):
        _check_dtypes(np.asarray(row).dtype for row in filled)
        is_masked = any(isinstance(row, np.ma.MaskedArray) for row in filled)
        joined = np.ma.concatenate(filled) if is_masked else np.concatenate(filled)  # type: ignore[no-untyped-call]
        items = _from_array(joined, False)
    else:
        items = from_values([item for row in filled for item in row], copy=copy)
    return _rolldock.Column.from_lists(items, offsets.astype(np.int32))


def _check_dtypes(of_rows: Iterable[Any]) -> None:
    dtypes = {str(dtype) for dtype in of_rows}
    if len(dtypes) > 1:
        raise TypeError(f"expected lists of one dtype, found {' and '.join(sorted(dtypes))}")
