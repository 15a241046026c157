"""Checkpoints of all samples: a directory with the state of the controller and with the data."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from rolldock.transfer_queue.lifecycle import get_client, is_initialized

logger = logging.getLogger(__name__)

_METADATA_FILE = "metadata.json"
_CONTROLLER_FILE = "controller_state.pkl"


def save_checkpoint(
    checkpoint_dir: str | PathLike[str],
    *,
    include_storage: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes a checkpoint. The directory appears when it is complete, and replaces an earlier one. Clients
    should make no puts and clears meanwhile.

    Args:
        checkpoint_dir: the directory, made if absent.
        include_storage: ignored. The data are always saved, because they would be lost at a restart.
        metadata: notes of the owner, JSON.

    Raises:
        RuntimeError: `init` was not called, or the data could not be saved.
        OSError: a file could not be written.
    """
    _check_initialized()
    if not include_storage:
        logger.warning("include_storage=False has no effect: the data would be lost at a restart")
    client = get_client()
    whole = Path(checkpoint_dir)
    unfinished, earlier = (whole.with_name(f"{whole.name}.{suffix}") for suffix in ("tmp", "old"))
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        client.save_controller_checkpoint(str(unfinished / _CONTROLLER_FILE))
        client.save_storage_checkpoint(str(unfinished))
        notes = {"storage_saved": True, "user_metadata": dict(metadata or {})}
        (unfinished / _METADATA_FILE).write_text(json.dumps(notes, indent=2))
        if whole.exists():
            shutil.rmtree(earlier, ignore_errors=True)
            whole.rename(earlier)
        unfinished.rename(whole)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if earlier.exists() and not whole.exists():
            earlier.rename(whole)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def load_checkpoint(checkpoint_dir: str | PathLike[str]) -> None:
    """Replaces all samples by a checkpoint's samples, or changes nothing. No other call may be in progress. A
    file of the checkpoint is unpickled, so load only checkpoints that you trust.

    Args:
        checkpoint_dir: the directory that `save_checkpoint` wrote. While the data are replaced, the earlier
            data are in a file there.

    Raises:
        FileNotFoundError: the directory, or a file of it, does not exist.
        RuntimeError: `init` was not called, or the data could not be restored.
        ValueError: the controller's file is damaged, or of another version or sampler.
    """
    _check_initialized()
    whole = Path(checkpoint_dir)
    earlier = whole.with_name(f"{whole.name}.old")
    if not whole.exists() and earlier.exists():
        # A save ended between the two renames.
        earlier.rename(whole)
    for path in (whole, whole / _METADATA_FILE, whole / _CONTROLLER_FILE):
        if not path.exists():
            raise FileNotFoundError(f"expected {path} of a checkpoint, found none")
    client = get_client()
    client.check_controller_checkpoint(str(whole / _CONTROLLER_FILE))
    client.load_storage_checkpoint(str(whole))
    client.load_controller_checkpoint(str(whole / _CONTROLLER_FILE))


def _check_initialized() -> None:
    if not is_initialized():
        raise RuntimeError("TransferQueue is not initialized. Call init() first.")
