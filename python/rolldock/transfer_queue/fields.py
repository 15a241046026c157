"""Fields of samples as columns of the queue, and back.

The items of a sample's tensor are stored as one list, and the controller keeps the tensor's shape. Other
objects are pickled. A column is named by its field and its type, such as `response_ids:int64`. A column of
the queue keeps its type permanently, but a field may change its type when no sample has it any more.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rolldock.columns import Ragged

if TYPE_CHECKING:
    from rolldock.table import Table

#: The schema of a field: `dtype`, `shape` of a sample, `is_nested`, `is_non_tensor` and, if it is nested,
#: `per_sample_shapes`.
Schema = dict[str, Any]
#: Types of torch that columns have. Items of other types are stored as their bytes.
_NATIVE = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)


@dataclass(frozen=True)
class Field:
    """The values of a field.

    Attributes:
        dtype: the type of the items of its tensors; `None` for objects.
        shapes: the shape of each sample; empty for objects.
        is_nested: whether the values were given one by one, so that their shapes may differ.
        values: one tensor of shape `(samples, ...)`, or one value for each sample.
    """

    dtype: torch.dtype | None
    shapes: tuple[tuple[int, ...], ...]
    is_nested: bool
    values: torch.Tensor | list[Any]

    @property
    def schema(self) -> Schema:
        """The schema of the field."""
        schema: Schema = {
            "dtype": self.dtype,
            "shape": self.shapes[0] if self.shapes else None,
            "is_nested": self.is_nested,
            "is_non_tensor": self.dtype is None,
        }
        if self.is_nested:
            schema["per_sample_shapes"] = list(self.shapes)
        return schema


def column_of(name: str, dtype: torch.dtype | None) -> str:
    """Returns the name of the column of a field."""
    return f"{name}:{'object' if dtype is None else str(dtype).removeprefix('torch.')}"


def values_of(data: TensorDict) -> dict[str, torch.Tensor | list[Any]]:
    """Returns the values of each field: a tensor of shape `(samples, ...)`, or a list with one value for each
    sample."""
    return {name: _plain(data.get(name)) for name in data.keys()}  # noqa: SIM118 (it iterates over rows)


def _plain(value: Any) -> torch.Tensor | list[Any]:
    if isinstance(value, torch.Tensor):
        return list(value.unbind()) if value.is_nested else value
    if isinstance(value, NonTensorStack):
        return list(value.tolist())
    if isinstance(value, NonTensorData):
        held = value.data
        rows = value.batch_size[0] if value.batch_size else 1
        if isinstance(held, list | tuple | np.ndarray) and len(held) == rows:
            return list(held)
        return [held] * rows
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    raise TypeError(f"expected a tensor or values of samples, found {type(value).__name__}")


def fields_of(values: Mapping[str, torch.Tensor | list[Any]], samples: int) -> dict[str, Field]:
    """Describes the values of each field.

    Raises:
        ValueError: a field has another number of values than there are samples.
    """
    fields: dict[str, Field] = {}
    for name, value in values.items():
        if len(value) != samples:
            raise ValueError(
                f"field={name}: expected values of samples={samples}, found length mismatch: {len(value)}"
            )
        fields[name] = _field(value)
    return fields


def _field(value: torch.Tensor | list[Any]) -> Field:
    if isinstance(value, torch.Tensor):
        return Field(value.dtype, (tuple(value.shape[1:]),) * len(value), False, value)
    types = {one.dtype if isinstance(one, torch.Tensor) else None for one in value}
    dtype = types.pop() if len(types) == 1 else None
    if dtype is None:
        return Field(None, (), False, value)
    return Field(dtype, tuple(tuple(one.shape) for one in value), True, value)


def schema_of(data: TensorDict) -> dict[str, Schema]:
    """Returns the schema of each field of data.

    Raises:
        ValueError: a field has another number of values than the data have samples.
    """
    fields = fields_of(values_of(data), data.batch_size[0])
    return {name: field.schema for name, field in fields.items()}


def encoded(field: Field, rows: Sequence[int] | None = None) -> Any:
    """Returns the values of some samples, or of all, as a column of the queue."""
    values = field.values
    if isinstance(values, torch.Tensor):
        dense = values if rows is None else values[list(rows)]
        length = dense[0].numel() if len(dense) else 0
        lengths = np.full(len(dense), length)
        items = dense.detach().reshape(-1)
    else:
        listed = values if rows is None else [values[row] for row in rows]
        if field.dtype is None:
            return [pickle.dumps(one, protocol=5) for one in listed]
        lengths = np.array([one.numel() for one in listed])
        items = torch.cat([one.detach().reshape(-1) for one in listed])
    items = items.cpu().contiguous()
    if items.dtype not in _NATIVE:
        lengths = lengths * items.element_size()
        items = items.view(torch.uint8)
    return Ragged(items, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]))


def decoded(table: Table, column: str, dtype: torch.dtype | None, shapes: Sequence[tuple[int, ...]]) -> Any:
    """Returns a field of rows: a tensor that is the caller's own, or a `NonTensorStack`.

    Scalars become a tensor of shape `(samples,)`. Tensors with different numbers of dimensions become a
    `NonTensorStack`. Other tensors become a nested tensor, whose layout is strided if more than the first
    dimension differs, else jagged.
    """
    if dtype is None:
        return NonTensorStack(*[pickle.loads(one) for one in table[column]])
    nested = table.torch(column)
    items = nested.values().clone()
    if dtype not in _NATIVE:
        items = items.view(dtype)
    if all(shape == () for shape in shapes):
        return items
    if all(len(shape) == 1 for shape in shapes) and dtype in _NATIVE:
        return torch.nested.nested_tensor_from_jagged(items, nested.offsets().clone())
    lengths = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    pairs = zip(items.split(lengths), shapes, strict=True)
    samples = [one.reshape(shape) for one, shape in pairs]
    if len({len(shape) for shape in shapes}) > 1:
        return NonTensorStack(*samples)
    is_jagged = len({shape[1:] for shape in shapes}) == 1
    return torch.nested.as_nested_tensor(samples, layout=torch.jagged if is_jagged else torch.strided)
