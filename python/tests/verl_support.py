"""What the tests of `rolldock.verl` share. They are skipped where torch or tensordict is not installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolldock
from rolldock import Client

NEEDED = "rolldock.verl needs this package"
torch = pytest.importorskip("torch", reason=NEEDED)
tensordict = pytest.importorskip("tensordict", reason=NEEDED)


#: Small modules that replace Ray and, as the guide says, TransferQueue.
STAND_INS = Path(__file__).parent / "stand_ins"


def verl() -> Any:
    """verl. Where Ray is not installed, a stand-in is used: verl's batches and algorithms need no Ray."""
    if importlib.util.find_spec("verl") is None:
        pytest.skip("verl is not installed")
    if str(STAND_INS) not in sys.path:
        # Installed packages come first.
        sys.path.append(str(STAND_INS))
    return importlib.import_module("verl")


def made(rows: int, seed: int, *, length_end: int = 9) -> dict[str, Any]:
    """Makes the columns of a run, with lists of random lengths from 1."""
    random = np.random.default_rng(seed)
    prompts, responses = random.integers(1, length_end, rows), random.integers(1, length_end, rows)
    return {
        "prompt_ids": [random.integers(1, 1000, length).astype(np.uint32) for length in prompts],
        "response_ids": [random.integers(1, 1000, length).astype(np.uint32) for length in responses],
        "response_mask": [random.integers(0, 2, length).astype(np.uint8) for length in responses],
        "rollout_logprobs": [-random.random(length).astype(np.float32) for length in responses],
        "reward": random.normal(size=rows).astype(np.float32),
        "advantage": random.normal(size=rows).astype(np.float32),
        "score": random.integers(0, 2, rows).astype(np.float32),
        "acc": random.integers(0, 2, rows).astype(np.float32),
        "data_source": [f"source-{row % 2}" for row in range(rows)],
        "ground_truth": [str(row) for row in range(rows)],
        "policy_version_min": random.integers(0, 4, rows).astype(np.uint64),
        "policy_version_max": random.integers(4, 8, rows).astype(np.uint64),
    }


def taken(client: Client, data: dict[str, Any], groups: int = 1) -> rolldock.Batch:
    """The rows, put as so many groups of one size and taken together."""
    size = len(data["prompt_ids"]) // groups
    for group in range(groups):
        part = {name: values[group * size : (group + 1) * size] for name, values in data.items()}
        client.put("p", f"group-{group}", part)
    batch = client.take("p", groups=groups)
    assert batch is not None
    return batch
