"""The key-value interface, as functions and as coroutines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase

from rolldock.transfer_queue.core import Parser
from rolldock.transfer_queue.kv_metadata import KVBatchMeta
from rolldock.transfer_queue.lifecycle import get_client


def _one_sample(fields: Any) -> TensorDict:
    """Returns the fields of one sample as a batch of one."""
    if isinstance(fields, TensorDictBase):
        return fields
    if not isinstance(fields, Mapping):
        raise ValueError(f"`fields` can only be dict or TensorDict, found {type(fields).__name__}")
    batch: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, torch.Tensor) and value.is_nested:
            raise ValueError(f"field={name} is a nested tensor, which has several samples: use kv_batch_put")
        batch[name] = value.unsqueeze(0) if isinstance(value, torch.Tensor) else NonTensorStack(value)
    return TensorDict(batch, batch_size=[1])


def kv_put(
    key: str,
    partition_id: str,
    fields: TensorDict | Mapping[str, Any] | None = None,
    tag: dict[str, Any] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """Puts fields and tags of one key, as `kv_batch_put`.

    Args:
        key: the key.
        partition_id: the partition.
        fields: a batch of one sample, or a mapping from names to the tensors (or other values) of the sample.
        tag: the tags, which are added to the key's tags.
        data_parser: as in `TransferQueueClient.put`.

    Returns:
        The key, with all of its tags and the names of all of its fields.

    Raises:
        ValueError: there are neither fields nor tags, or a value in a mapping is a nested tensor.
    """
    if fields is None and tag is None:
        raise ValueError("Please provide at least one parameter of fields or tag.")
    data = None if fields is None else _one_sample(fields)
    return kv_batch_put([key], partition_id, data, None if tag is None else [tag], data_parser)


def kv_batch_put(
    keys: Sequence[str],
    partition_id: str,
    fields: TensorDict | None = None,
    tags: Sequence[dict[str, Any]] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """Puts fields and tags of keys. A key that exists keeps its other fields and tags; fields that it has
    already are replaced. If the fields cannot be stored, new keys are removed again.

    Args:
        keys: the keys, each once.
        partition_id: the partition, which is made if there is none.
        fields: a batch with one sample for each key. Without it, only the tags change.
        tags: new tags for each key, which are added to the key's tags.
        data_parser: as in `TransferQueueClient.put`.

    Returns:
        The keys, with all of their tags and the names of the fields that all of them have.

    Raises:
        ValueError: there are neither fields nor tags, there is not one sample or tag for each key, a key is
            named twice, or a field has another type than in other samples.
        TypeError: the fields are not a TensorDict, or a key is not a string.
    """
    if fields is None and tags is None:
        raise ValueError("Please provide at least one parameter of `fields` or `tags`.")
    if fields is not None and not isinstance(fields, TensorDictBase):
        raise TypeError(f"expected a TensorDict as `fields`, found {type(fields).__name__}")
    if len(set(keys)) != len(keys):
        raise ValueError("expected every key once, found duplicated keys")
    if fields is not None and fields.batch_size[0] != len(keys):
        raise ValueError(
            f"`keys` with length {len(keys)} does not match the `fields` TensorDict with batch_size "
            f"{fields.batch_size[0]}"
        )
    if tags is not None and len(tags) != len(keys):
        raise ValueError(f"keys with length {len(keys)} does not match length of tags {len(tags)}")
    client = get_client()
    meta, _, created = client.find(keys, partition_id, create=True)
    given = [{} for _ in keys] if tags is None else list(tags)
    try:
        if fields is None:
            client.add_tags(meta, given)
        else:
            # The put gets only the new tags, so that tags which another client adds now are kept.
            noted = meta.get_all_custom_meta()
            meta.custom_meta = [dict(one) for one in given]
            meta = client.put(fields, meta, data_parser=data_parser)
            meta.custom_meta = noted
    except BaseException:
        if created:
            client.clear_samples(created)
        raise
    meta.update_custom_meta(given)
    return KVBatchMeta(list(keys), meta.custom_meta, partition_id, meta.field_names, meta.extra_info)


def kv_batch_get_by_meta(meta: KVBatchMeta, select_fields: Sequence[str] | str | None = None) -> TensorDict:
    """Reads fields of the keys of a `KVBatchMeta`, as `kv_batch_get`.

    Args:
        meta: the keys, with their partition and fields.
        select_fields: some of these fields; all by default.

    Raises:
        ValueError: there is no partition, a key was not found, or a field is not one of the metadata.
    """
    if meta.partition_id is None:
        raise ValueError("Must provide partition_id in the input KVBatchMeta.")
    names = [select_fields] if isinstance(select_fields, str) else select_fields
    lacking = [name for name in names or () if name not in (meta.fields or ())]
    if lacking:
        raise ValueError(f"select_fields {lacking} not found in the metadata, which has {meta.fields}")
    return kv_batch_get(meta.keys, meta.partition_id, meta.fields if names is None else names)


def kv_batch_get(
    keys: Sequence[str] | str, partition_id: str, select_fields: Sequence[str] | str | None = None
) -> TensorDict:
    """Reads fields of keys, in the order of the keys. Nothing is consumed.

    Args:
        keys: a key, or several.
        partition_id: the partition.
        select_fields: a field, or several. By default, all fields that every key has. A selected field that
            some key lacks is left out, because callers such as verl also ask for optional fields.

    Returns:
        The fields, as `TransferQueueClient.get_data` returns them.

    Raises:
        ValueError: a key or the partition was not found, or the keys have none of the fields.
    """
    client = get_client()
    meta, unknown, _ = client.find(keys, partition_id, create=False)
    if unknown:
        raise ValueError(f"keys {unknown} were not found in partition={partition_id}")
    names = [select_fields] if isinstance(select_fields, str) else select_fields
    chosen = meta if names is None else meta.select_fields(names)
    if not chosen.field_names:
        raise ValueError(
            "Some fields are not ready in all the requested keys: expected "
            f"{names or 'any field'}, found {meta.field_names}"
        )
    return client.get_data(chosen)


def kv_list(partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the tags of each key of a partition, or of all partitions.

    Returns:
        For each partition that exists, the tags of each key, in the order of their first puts.
    """
    return get_client().kv_list(partition_id)


def kv_clear(keys: Sequence[str] | str, partition_id: str) -> None:
    """Removes keys with their data. Keys that do not exist are ignored."""
    client = get_client()
    client.clear_samples(client.find(keys, partition_id, create=False)[0])


async def async_kv_put(
    key: str,
    partition_id: str,
    fields: TensorDict | Mapping[str, Any] | None = None,
    tag: dict[str, Any] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """As `kv_put`."""
    return await get_client().run(kv_put, key, partition_id, fields, tag, data_parser)


async def async_kv_batch_put(
    keys: Sequence[str],
    partition_id: str,
    fields: TensorDict | None = None,
    tags: Sequence[dict[str, Any]] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """As `kv_batch_put`."""
    return await get_client().run(kv_batch_put, keys, partition_id, fields, tags, data_parser)


async def async_kv_batch_get_by_meta(
    meta: KVBatchMeta, select_fields: Sequence[str] | str | None = None
) -> TensorDict:
    """As `kv_batch_get_by_meta`."""
    return await get_client().run(kv_batch_get_by_meta, meta, select_fields)


async def async_kv_batch_get(
    keys: Sequence[str] | str, partition_id: str, select_fields: Sequence[str] | str | None = None
) -> TensorDict:
    """As `kv_batch_get`."""
    return await get_client().run(kv_batch_get, keys, partition_id, select_fields)


async def async_kv_list(partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """As `kv_list`."""
    return await get_client().run(kv_list, partition_id)


async def async_kv_clear(keys: Sequence[str] | str, partition_id: str) -> None:
    """As `kv_clear`."""
    await get_client().run(kv_clear, keys, partition_id)
