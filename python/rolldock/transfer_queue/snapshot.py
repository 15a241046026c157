"""Snapshots of the data of all samples, by the command `rolldock queue`.

A partition of a queue cannot be renamed. A load therefore saves the present data to a file, removes them, and
then restores the snapshot. If the load fails, it restores the earlier data from the file.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

from rolldock.transfer_queue.server import DATA, binary, connected


def save(config: Any, path: Path) -> None:
    """Writes a snapshot.

    Raises:
        RuntimeError: the server did not write the snapshot.
    """
    _run(config, "snapshot", "--partition", DATA, config.rolldock.http, str(path))


def load(config: Any, path: Path) -> None:
    """Replaces the data by the data of a snapshot.

    Raises:
        RuntimeError: the server did not read the snapshot. The earlier data are then in place again, or in
            the file that the message names.
    """
    if not _has_data(config):
        _replace(config, path)
        return
    before = path.with_name(f"{path.name}.{uuid.uuid4().hex}.before")
    save(config, before)
    try:
        _replace(config, path)
    except BaseException as error:
        try:
            _replace(config, before)
        except RuntimeError as failed:
            raise RuntimeError(f"{error}; the data of before are in {before}, because {failed}") from error
        before.unlink()
        raise
    before.unlink()


def _replace(config: Any, path: Path) -> None:
    if _has_data(config):
        _run(config, "clear", "--partition", DATA, "--remove", config.rolldock.http)
    _run(config, "restore", str(path), config.rolldock.http)


def _has_data(config: Any) -> bool:
    """Whether the queue has the partition of the data. After a failed restore it does not."""
    with connected(config.rolldock) as queue:
        return DATA in queue.partitions()


def _run(config: Any, *arguments: str | None) -> None:
    if config.rolldock.http is None:
        raise RuntimeError(
            "expected the HTTP address of the queue's server in rolldock.http of the configuration, "
            "found none"
        )
    words = [str(word) for word in arguments]
    token = {"ROLLDOCK_QUEUE_TOKEN": config.rolldock.token} if config.rolldock.token else {}
    done = subprocess.run(
        [binary(), "queue", *words],
        env={**os.environ, **token},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"rolldock queue {words[0]} failed: {done.stderr.strip()}")
