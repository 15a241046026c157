"""Snapshots of the data of all samples, by the command `rolldock queue`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from rolldock.transfer_queue.server import DATA, binary


def save(config: Any, path: Path) -> None:
    """Writes a snapshot.

    Raises:
        RuntimeError: the server did not write it.
    """
    _run(config, "snapshot", "--partition", DATA, config.rolldock.http, str(path))


def load(config: Any, path: Path) -> None:
    """Replaces the data by those of a snapshot.

    Raises:
        RuntimeError: the server did not read it. Then there are no data.
    """
    _run(config, "clear", "--partition", DATA, "--remove", config.rolldock.http)
    _run(config, "restore", str(path), config.rolldock.http)


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
