"""The client of the low-level interface: metadata first, then data by metadata."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rolldock.transfer_queue import snapshot
from rolldock.transfer_queue.core import ClientCore
from rolldock.transfer_queue.metadata import BatchMeta

#: The file of a checkpoint's directory that has the rows.
STORAGE_FILE = "queue.snapshot"


class TransferQueueClient(ClientCore):
    """A client of the samples of all partitions. It may be used by any number of threads.

    Each method has a form for asyncio: `async_get_meta`, `async_put`, and so on. These forms run in threads
    of the client.

    Args:
        client_id: a name for messages.
        config: the configuration that `init` returned.

    Raises:
        RuntimeError: `init` was not called with the configuration's queue.
    """

    # Status

    def get_partition_list(self) -> list[str]:
        """Returns the names of the partitions, in the order of their creation."""
        names: list[str] = self._call("partition_list")
        return names

    async def async_get_partition_list(self) -> list[str]:
        """As `get_partition_list`."""
        return await self.run(self.get_partition_list)

    def get_consumption_status(
        self, task_name: str, partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns which samples a task has consumed.

        Returns:
            The index of each sample, shape `(samples,)`, int64; and 1 where the task has consumed it, else 0,
            shape `(samples,)`, int8. `None` twice if there is no such partition.
        """
        found = self._call("consumption", partition_id, task_name)
        if found is None:
            return None, None
        indexes, status = found
        return torch.tensor(indexes, dtype=torch.int64), torch.tensor(status, dtype=torch.int8)

    async def async_get_consumption_status(
        self, task_name: str, partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """As `get_consumption_status`."""
        return await self.run(self.get_consumption_status, task_name, partition_id)

    def get_production_status(
        self, data_fields: Sequence[str], partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns which samples have which fields.

        Returns:
            The index of each sample, shape `(samples,)`, int64; and 1 where it has a field, else 0, shape
            `(samples, fields)`, int8. `None` twice if there is a field that no sample has.
        """
        found = self._call("production", partition_id, list(data_fields))
        if found is None:
            return None, None
        indexes, status = found
        return torch.tensor(indexes, dtype=torch.int64), torch.tensor(status, dtype=torch.int8)

    async def async_get_production_status(
        self, data_fields: Sequence[str], partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """As `get_production_status`."""
        return await self.run(self.get_production_status, data_fields, partition_id)

    def check_consumption_status(self, task_name: str, partition_id: str) -> bool:
        """Whether a partition has samples, and a task has consumed all of them."""
        return bool(self._call("has_consumed_all", partition_id, task_name))

    async def async_check_consumption_status(self, task_name: str, partition_id: str) -> bool:
        """As `check_consumption_status`."""
        return await self.run(self.check_consumption_status, task_name, partition_id)

    def check_production_status(self, data_fields: Sequence[str], partition_id: str) -> bool:
        """Whether a partition has samples, and all of them have the fields."""
        return bool(self._call("has_all", partition_id, list(data_fields)))

    async def async_check_production_status(self, data_fields: Sequence[str], partition_id: str) -> bool:
        """As `check_production_status`."""
        return await self.run(self.check_production_status, data_fields, partition_id)

    def reset_consumption(self, partition_id: str, task_name: str | None = None) -> bool:
        """Makes the samples of a partition ready again, for one task or for all.

        Returns:
            Whether there is such a partition.
        """
        return bool(self._call("reset", partition_id, task_name))

    async def async_reset_consumption(self, partition_id: str, task_name: str | None = None) -> bool:
        """As `reset_consumption`."""
        return await self.run(self.reset_consumption, partition_id, task_name)

    # Keys

    def kv_retrieve_meta(
        self, keys: str | Sequence[str], partition_id: str, create: bool = False
    ) -> BatchMeta:
        """Returns the metadata of the samples with these keys, with the fields that all of them have.

        Args:
            keys: the keys. Keys that no sample has are left out.
            partition_id: the partition.
            create: whether samples without data are made for the unknown keys instead.

        Raises:
            TypeError: a key is not a string.
            ValueError: there are no keys.
        """
        return self.find(keys, partition_id, create)[0]

    def find(
        self, keys: str | Sequence[str], partition_id: str, create: bool
    ) -> tuple[BatchMeta, list[str], BatchMeta]:
        """As `kv_retrieve_meta`. Returns also the keys that no sample had, and the samples that were made."""
        listed = [keys] if isinstance(keys, str) else list(keys)
        if not listed:
            raise ValueError("expected at least one key, found none")
        for key in listed:
            if not isinstance(key, str):
                raise TypeError(f"expected strings as keys, found {type(key).__name__}")
        meta, unknown, created = self._call("find", partition_id, listed, create)
        new = set(created)
        made = [place for place, index in enumerate(meta.global_indexes) if index in new]
        return meta, unknown, meta.select_samples(made)

    async def async_kv_retrieve_meta(
        self, keys: str | Sequence[str], partition_id: str, create: bool = False
    ) -> BatchMeta:
        """As `kv_retrieve_meta`."""
        return await self.run(self.kv_retrieve_meta, keys, partition_id, create)

    def kv_retrieve_keys(self, global_indexes: int | Sequence[int], partition_id: str) -> list[str]:
        """Returns the keys of samples.

        Raises:
            RuntimeError: a sample has no key, or was cleared.
            TypeError: an index is not a number.
            ValueError: there are no indexes.
        """
        listed = [global_indexes] if isinstance(global_indexes, int) else list(global_indexes)
        if not listed:
            raise ValueError("expected at least one index, found none")
        for index in listed:
            if not isinstance(index, int):
                raise TypeError(f"expected numbers as indexes, found {type(index).__name__}")
        keys: list[str] = self._call("keys_of", partition_id, listed)
        lacking = [index for index, key in zip(listed, keys, strict=True) if key is None]
        if lacking:
            raise RuntimeError(f"samples {lacking} of partition={partition_id} have no keys")
        return keys

    async def async_kv_retrieve_keys(
        self, global_indexes: int | Sequence[int], partition_id: str
    ) -> list[str]:
        """As `kv_retrieve_keys`."""
        return await self.run(self.kv_retrieve_keys, global_indexes, partition_id)

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """Returns the tags of each key of a partition, or of all partitions."""
        tags: dict[str, dict[str, dict[str, Any]]] = self._call("key_tags", partition_id)
        return tags

    async def async_kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """As `kv_list`."""
        return await self.run(self.kv_list, partition_id)

    def add_tags(self, metadata: BatchMeta, tags: Sequence[dict[str, Any]]) -> None:
        """Adds tags to samples of one partition."""
        self._call("note", metadata.partition_ids[0], metadata.global_indexes, list(tags), True)

    # Checkpoints

    def save_controller_checkpoint(self, path: str) -> None:
        """Writes the state of the controller to a file: all samples without their data."""
        Path(path).write_bytes(self._call("save"))

    async def async_save_controller_checkpoint(self, path: str) -> None:
        """As `save_controller_checkpoint`."""
        await self.run(self.save_controller_checkpoint, path)

    def check_controller_checkpoint(self, path: str) -> None:
        """Checks a file before `load_controller_checkpoint` reads it. The file is unpickled, so check only
        files that you trust.

        Raises:
            ValueError: the file is damaged, or of another version or sampler.
        """
        self._call("check", Path(path).read_bytes())

    def load_controller_checkpoint(self, path: str) -> None:
        """Replaces the state of the controller by the state in a file. The file is unpickled, so load only
        files that you trust.

        Raises:
            ValueError: the file is damaged, or of another version or sampler. Then nothing has changed.
        """
        self._call("load", Path(path).read_bytes())

    async def async_load_controller_checkpoint(self, path: str) -> None:
        """As `load_controller_checkpoint`."""
        await self.run(self.load_controller_checkpoint, path)

    def save_storage_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes the data of all samples to a directory.

        Raises:
            RuntimeError: the queue's server did not write the data.
        """
        snapshot.save(self._config, Path(checkpoint_dir) / STORAGE_FILE)

    async def async_save_storage_checkpoint(self, checkpoint_dir: str) -> None:
        """As `save_storage_checkpoint`."""
        await self.run(self.save_storage_checkpoint, checkpoint_dir)

    def load_storage_checkpoint(self, checkpoint_dir: str) -> None:
        """Replaces the data of all samples by the data in a directory.

        Raises:
            FileNotFoundError: the directory has no data.
            RuntimeError: the queue's server did not read the data. The earlier data are then in place again.
        """
        path = Path(checkpoint_dir) / STORAGE_FILE
        if not path.exists():
            raise FileNotFoundError(f"expected the file {path}, found none")
        snapshot.load(self._config, path)

    async def async_load_storage_checkpoint(self, checkpoint_dir: str) -> None:
        """As `load_storage_checkpoint`."""
        await self.run(self.load_storage_checkpoint, checkpoint_dir)
