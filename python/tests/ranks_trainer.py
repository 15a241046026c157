"""A data-parallel trainer for `test_torchrun.py`: two replicas of two ranks train a small model together.

Usage: ranks_trainer.py PARTITION FOLDER KILL_AT; rank 3 kills itself in step KILL_AT of this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import rolldock
from rolldock.torch import Fields, Flops, MicroBatch, Ranks, StreamingDataLoader, StreamingDataset


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 1000)).double()


def loss_of(model: torch.nn.Module, micro: MicroBatch, loss_tokens: int) -> torch.Tensor:
    """The loss of a policy gradient: the mean over all loss tokens of the batch, on all ranks."""
    logits = model(micro.input_ids)[:-1]
    chosen = logits.log_softmax(-1).gather(-1, micro.input_ids[1:, None])[:, 0]
    weights = (micro.advantages * micro.loss_mask)[1:].double()
    return -(chosen * weights).sum() / max(loss_tokens, 1)


def reduce_gradients(model: torch.nn.Module, members: int) -> None:
    """Adds the gradients of the replicas.

    The sum over all ranks counts each replica `members` times, because its members have equal gradients.
    """
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad = parameter.grad / members


def step(model: torch.nn.Module) -> None:
    """Makes a step of gradient descent.

    An optimizer of torch is not used, because its import takes longer than the whole training.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad


def save(path: Path, state: dict[str, Any]) -> None:
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    torch.set_num_threads(1)
    partition, folder, kill_at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", timeout=timedelta(seconds=240))
    rank = dist.get_rank()
    ranks = Ranks.here(members=2, timeout_s=60)
    dataset = StreamingDataset(
        rolldock.Client(os.environ["URL"]),
        partition,
        groups=3,
        fields=Fields(extra=("id",)),
        ranks=ranks,
        balance=Flops(parameters=1e3, layers=2, hidden_size=8),
    )
    loader = StreamingDataLoader(dataset, micro_batch_tokens=48, prefetch=2)
    model = make_model()
    checkpoint = folder / "checkpoint.pt"
    steps: list[dict[str, Any]] = []
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
        steps = state["steps"]
    for number, batch in enumerate(loader):
        model.zero_grad()
        for micro in batch:
            loss_of(model, micro, batch.totals.loss_tokens).backward()
        if number == kill_at and rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        reduce_gradients(model, ranks.members)
        step(model)
        ids = [row for micro in batch if not micro.is_filler for row in micro.extra["id"].tolist()]
        seen: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(seen, {"ids": ids, "micro_batches": len(batch), "tokens": batch.tokens})
        steps.append({"ranks": seen, "rows": batch.totals.rows, "tokens": batch.totals.tokens})
        if rank == 0:
            save(
                checkpoint,
                {"model": model.state_dict(), "loader": loader.state_dict(), "steps": steps},
            )
    parameters = [parameter.tolist() for parameter in model.parameters()]
    (folder / f"rank-{rank}.json").write_text(json.dumps({"parameters": parameters, "steps": steps}))
    dist.destroy_process_group()


main()
