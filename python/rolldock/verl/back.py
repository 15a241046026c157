"""Makes columns of the queue from the results of verl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict

from rolldock.verl.batches import HANDLE
from rolldock.verl.errors import BadBatch

if TYPE_CHECKING:
    from rolldock.columns import Array
    from rolldock.table import Batch

#: The names of fields of verl, or for each field the name of its column.
Names = Iterable[str] | Mapping[str, str]


def columns_of(data: Any, names: Names) -> tuple[Array, dict[str, Any]]:
    """Returns fields of a batch of verl as columns of its rows, without padding.

    Args:
        data: a `DataProto` or a `TensorDict` with the field `handle`, in any order of the rows. Padded values
            of tokens, of shape `(rows, R)`, need the fields `responses` and `attention_mask`, too. Nested
            tensors are taken as they are.
        names: the fields, such as `["old_log_probs", "values"]`; or for each field the name of its column.

    Returns:
        The handles of the rows, shape `(rows,)`, uint64, and the columns: `client.write(partition, *result)`.

    Raises:
        BadBatch: a field is absent, a row occurs twice, or a field has values for other tokens than those
            of the responses.
    """
    tensors, others = _parts(data)
    if HANDLE not in tensors:
        raise BadBatch(f"expected the field {HANDLE} of rows of the queue, found {sorted(tensors)}")
    handles = tensors[HANDLE].numpy(force=True).astype(np.int64).view(np.uint64)
    if len(np.unique(handles)) < len(handles):
        raise BadBatch("expected every row once; remove rows that were added as padding (unpad_dataproto)")
    pairs = names.items() if isinstance(names, Mapping) else [(name, name) for name in names]
    columns: dict[str, Any] = {}
    for name, column in pairs:
        if name in others:
            columns[column] = others[name].tolist()
        elif name in tensors:
            columns[column] = _column(name, tensors)
        else:
            raise BadBatch(f"expected the field {name}, found {sorted([*tensors, *others])}")
    return handles, columns


def write_back(batch: Batch, data: Any, names: Names, *, overwrite: bool = False) -> None:
    """Writes fields that verl has computed to the rows of a batch, for the tasks that wait for them.

    Args:
        batch: the rows that `data` was made from.
        data: a `DataProto` or a `TensorDict` as in `columns_of`, or a `KVBatchMeta` of
            `rolldock.transfer_queue`, whose fields are read. Its rows may be in another order. Samples that
            verl added to the metadata as padding are left out.
        names: the fields; or for each field the name of its column.
        overwrite: whether values that exist are replaced.

    Raises:
        BadBatch: as in `columns_of`, or `data` and the batch have different rows.
        ColumnExists: the rows have a column already, and `overwrite` is false.
    """
    handles, columns = columns_of(_read(data, names), names)
    places = {handle: place for place, handle in enumerate(handles.tolist())}
    rows = batch.handles.tolist()
    if set(rows) != set(places):
        raise BadBatch(
            f"expected the rows of the batch, {len(rows)}, found {len(places)}, of which "
            f"{len(set(places) - set(rows))} are others"
        )
    order = [places[row] for row in rows]
    batch.write({name: _ordered(values, order) for name, values in columns.items()}, overwrite=overwrite)


def _read(data: Any, names: Names) -> Any:
    """Returns the fields of metadata, and other data as they are."""
    if not hasattr(data, "partition_id"):
        return data
    from rolldock.transfer_queue import kv_batch_get

    tagged = zip(data.keys, data.tags, strict=True)
    keys = [key for key, tags in tagged if not tags.get("is_padding", False)]
    wanted = list(dict.fromkeys([*names, HANDLE, "responses"]))
    return kv_batch_get(keys, data.partition_id, wanted)


def _parts(data: Any) -> tuple[dict[str, torch.Tensor], dict[str, Array]]:
    """Returns the tensors of a batch, and its other values."""
    is_tensordict = isinstance(data, TensorDict)
    fields = data if is_tensordict else data.batch
    tensors, others = {}, {} if is_tensordict else dict(data.non_tensor_batch)
    for name in fields.keys():  # noqa: SIM118 (it iterates over rows)
        value = fields.get(name)
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        else:
            others[name] = np.array(value.tolist(), dtype=object)
    return tensors, others


def _column(name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    tensor = tensors[name].detach().cpu()
    responses = tensors.get("responses")
    if tensor.is_nested:
        found = tensor.offsets().diff()
        if responses is not None and not torch.equal(found, _lengths(name, tensors)):
            raise BadBatch(
                f"field={name}: expected one value for each token of the responses, found others; take "
                "response_from_nested(log_probs, response_mask) of values that the prompts have too"
            )
        return tensor
    if tensor.ndim == 1:
        return tensor
    if responses is None:
        raise BadBatch(f"field={name}: expected `responses` beside values of tokens, found {sorted(tensors)}")
    lengths = _lengths(name, tensors)
    if not responses.is_nested and tensor.shape[1] != responses.shape[1]:
        raise BadBatch(
            f"field={name}: expected {responses.shape[1]} values in each row, one for each place of the"
            f" padded responses, found {tensor.shape[1]}"
        )
    is_token = torch.arange(tensor.shape[1]) < lengths[:, None]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.nested.nested_tensor_from_jagged(tensor[is_token], offsets)


def _lengths(name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the tokens of each response; shape `(rows,)`, int64."""
    responses = tensors["responses"]
    if responses.is_nested:
        return responses.offsets().diff().cpu()
    if "attention_mask" not in tensors:
        raise BadBatch(f"field={name}: expected `attention_mask`, which tells the tokens from padding")
    return tensors["attention_mask"][:, -responses.shape[1] :].sum(1).cpu()


def _ordered(values: Any, order: list[int]) -> Any:
    if isinstance(values, list):
        return [values[place] for place in order]
    if values.is_nested:
        rows = values.unbind()
        return torch.nested.as_nested_tensor([rows[place] for place in order], layout=torch.jagged)
    return values[order]
