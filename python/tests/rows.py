"""Rows for the tests of the loader, made from a seed: the columns of a run that it reads, and an id."""

from __future__ import annotations

from typing import Any

import numpy as np

import rolldock

#: The types of the columns: those that the loader reads from the rows of a run, and `id`.
COLUMNS = {
    "id": "int64",
    "prompt_ids": "list<uint32>",
    "response_ids": "list<uint32>",
    "response_mask": "list<uint8>",
    "rollout_logprobs": "list<float32>",
    "advantage": "float32",
}


def made(count: int, first: int = 0, seed: int = 0, length_end: int = 12) -> dict[str, Any]:
    """Makes `count` rows with consecutive ids from `first`. A prompt begins with the id of its row."""
    random = np.random.default_rng([seed, first])
    prompts = random.integers(1, length_end, count)
    responses = random.integers(0, length_end, count)
    return {
        "id": np.arange(first, first + count, dtype=np.int64),
        "prompt_ids": [
            np.concatenate(([first + row], random.integers(0, 1000, length - 1))).astype(np.uint32)
            for row, length in enumerate(prompts)
        ],
        "response_ids": [random.integers(0, 1000, length).astype(np.uint32) for length in responses],
        "response_mask": [random.integers(0, 2, length).astype(np.uint8) for length in responses],
        "rollout_logprobs": [-random.random(length).astype(np.float32) for length in responses],
        "advantage": random.normal(size=count).astype(np.float32),
    }


def put(client: rolldock.Client, partition: str, groups: int, size: int = 4, first: int = 0) -> int:
    """Puts groups of rows with consecutive ids, and returns the next id."""
    for group in range(groups):
        rows = made(size, first + group * size)
        client.put(partition, f"group-{first + group * size}", rows, policy_version=group)
    return first + groups * size


def declare(client: rolldock.Client, partition: str, lease_ms: int = 600_000) -> None:
    """Declares a partition as a run does."""
    client.declare(
        partition, columns=COLUMNS, length_columns=["prompt_ids", "response_ids"], lease_ms=lease_ms
    )


def filled(client: rolldock.Client, groups: int, *, is_ended: bool = False) -> None:
    """Declares the partition `p`, puts groups of four rows with ids from 0, and ends the puts if asked to."""
    declare(client, "p")
    put(client, "p", groups)
    if is_ended:
        client.end_of_puts("p")
