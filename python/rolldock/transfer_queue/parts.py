"""Splits batches of metadata, and joins their notes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

logger = logging.getLogger(__name__)


def chunked(size: int, chunks: int) -> Iterator[range]:
    """Splits `size` positions into `chunks` ranges of about equal length, the longer ones first.

    Raises:
        ValueError: `chunks` is less than 1.
    """
    if chunks < 1:
        raise ValueError(f"expected at least one part, found {chunks}")
    if size < chunks:
        logger.warning("samples=%d are fewer than parts=%d, so some parts are empty", size, chunks)
    each, larger = divmod(size, chunks)
    start = 0
    for part in range(chunks):
        end = start + each + (part < larger)
        yield range(start, end)
        start = end


def joined_info(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Joins the notes of several batches.

    Raises:
        ValueError: two batches have different values of one note.
    """
    joined: dict[str, Any] = {}
    for info in infos:
        for key, value in info.items():
            if key in joined and not _is_equal(joined[key], value):
                raise ValueError(
                    f"extra_info key={key!r} has conflicting values: found {joined[key]!r} and {value!r}"
                )
            joined.setdefault(key, value)
    return joined


def _is_equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)
