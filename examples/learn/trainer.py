"""A DAPO trainer: takes each step from the queue of a run, trains on it, and announces the new weights.

The trainer may be killed at any moment and started again with the same arguments. It then continues from its
checkpoint, which has the model, the optimizer, and the rows on which the model was trained.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tomllib
import torch
from characters import PAD_ID
from model import load, logprobs_of, save
from transformers import LlamaForCausalLM

import rolldock
from rolldock.torch import Fields, MicroBatch, StreamingDataLoader, StreamingDataset

#: How long a call is repeated while the run does not answer, in seconds.
PATIENCE_S = 300.0
#: The number of newest versions whose weights stay on disk. A server that returns loads the weights of the
#: last announced version.
WEIGHTS_KEPT = 4
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The table `[trainer]` of the recipe."""

    clip_ratio_low: float
    clip_ratio_high: float
    learning_rate: float
    betas: tuple[float, float]
    warmup_steps: int
    gradient_clip: float
    mini_batch_rows: int


@dataclass(frozen=True)
class Rows:
    """Samples of a step, padded on the right.

    Attributes:
        tokens: prompts and responses; shape `(rows, length)`, int64.
        mask: the tokens to learn from; shape `(rows, length - 1)`, bool, for the tokens after the first.
        rollout_logprobs: the log-probabilities of the engine, in nats; shape `(rows, length - 1)`.
        advantages: one for each row; shape `(rows,)`.
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    rollout_logprobs: torch.Tensor
    advantages: torch.Tensor

    def parts(self, rows: int, draw: torch.Generator) -> Iterator[Rows]:
        """Divides the rows at random into parts of at most `rows`."""
        for places in torch.randperm(len(self.tokens), generator=draw).split(rows):
            yield self.at(places)

    def at(self, places: torch.Tensor) -> Rows:
        """Returns the rows that `places` selects by their indices or by a mask."""
        return Rows(
            self.tokens[places],
            self.mask[places],
            self.rollout_logprobs[places],
            self.advantages[places],
        )


def padded(batch: MicroBatch) -> Rows:
    """Returns the sequences of a flat batch as padded rows."""
    if batch.rollout_logprobs is None:
        raise ValueError("expected rollout_logprobs, found a loader without them")
    lengths = batch.cu_seqlens.diff().long()
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)

    def spread(values: torch.Tensor, fill: float) -> torch.Tensor:
        spread = torch.full((len(lengths), batch.max_seqlen), fill, dtype=values.dtype)
        spread[row, batch.position_ids] = values
        return spread

    return Rows(
        spread(batch.input_ids, PAD_ID),
        spread(batch.loss_mask, False)[:, 1:],
        spread(batch.rollout_logprobs, 0.0)[:, 1:],
        batch.extra["advantage"],
    )


def shuffled(advantages: torch.Tensor, groups: list[str], draw: torch.Generator) -> torch.Tensor:
    """Returns the advantages in a random order within each group: a control that must not learn."""
    shuffled = advantages.clone()
    for group in dict.fromkeys(groups):
        places = torch.tensor([place for place, name in enumerate(groups) if name == group])
        shuffled[places] = advantages[places[torch.randperm(len(places), generator=draw)]]
    return shuffled


def loss_of(model: LlamaForCausalLM, rows: Rows, settings: Settings) -> tuple[torch.Tensor, dict[str, float]]:
    """Returns DAPO's loss with its figures. The loss is the mean over the tokens of these rows.

    The ratio compares the model's log-probabilities with the engine's. Its upper bound,
    `1 + clip_ratio_high`, is farther from 1 than its lower bound.
    """
    logprobs, entropy = logprobs_of(model, rows.tokens)
    advantages = rows.advantages[:, None]
    ratio = (logprobs - rows.rollout_logprobs).exp()
    clipped = ratio.clamp(1 - settings.clip_ratio_low, 1 + settings.clip_ratio_high)
    terms = -torch.minimum(ratio * advantages, clipped * advantages)
    tokens = rows.mask.sum()
    with torch.no_grad():
        cut = (ratio * advantages > clipped * advantages) & rows.mask
        figures = {
            "entropy": float((entropy * rows.mask).sum() / tokens),
            "clipped": float(cut.sum() / tokens),
            "logprob_difference_max": float(((logprobs - rows.rollout_logprobs).abs() * rows.mask).max()),
        }
    return (terms * rows.mask).sum() / tokens, figures


class Trainer:
    """The model, its optimizer, and the checkpoint of both."""

    def __init__(self, folder: Path, settings: Settings, warm: Path, seed: int) -> None:
        self._folder, self._settings, self._seed = folder, settings, seed
        self.model = load(warm)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, betas=settings.betas
        )
        #: The number of steps that the model was trained on. It is also the policy version of its weights.
        self.version = 0
        self._updates = 0
        #: The loader's state in the checkpoint.
        self.taken: dict[str, Any] | None = None
        if self._checkpoint.exists():
            state = torch.load(self._checkpoint)
            self.model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.version, self._updates, self.taken = state["version"], state["updates"], state["taken"]

    @property
    def _checkpoint(self) -> Path:
        return self._folder / "checkpoint.pt"

    @property
    def weights(self) -> Path:
        """The folder with the weights of this version."""
        return self._folder / "weights" / f"step-{self.version}"

    def draw(self) -> torch.Generator:
        """Returns the random generator of the next step."""
        return torch.Generator().manual_seed(self._seed * 1_000_000 + self.version)

    def train(self, rows: Rows, draw: torch.Generator) -> dict[str, float]:
        """Trains on a step, and returns the figures of its first mini-batch, before the first update."""
        first: dict[str, float] = {}
        for part in rows.parts(self._settings.mini_batch_rows, draw):
            loss, figures = loss_of(self.model, part, self._settings)
            first = first or figures
            self._optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.gradient_clip)
            self._updates += 1
            for group in self._optimizer.param_groups:
                group["lr"] = self._settings.learning_rate * min(
                    1.0, self._updates / self._settings.warmup_steps
                )
            self._optimizer.step()
        self.version += 1
        return first

    def save(self, taken: dict[str, Any]) -> None:
        """Writes the weights for the servers and the checkpoint, and removes old weights."""
        self.weights.parent.mkdir(exist_ok=True)
        save(self.model, self.weights)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "version": self.version,
            "updates": self._updates,
            "taken": taken,
        }
        torch.save(state, self._checkpoint.with_suffix(".new"))
        os.replace(self._checkpoint.with_suffix(".new"), self._checkpoint)
        shutil.rmtree(self.weights.with_name(f"step-{self.version - WEIGHTS_KEPT}"), ignore_errors=True)


def patiently(call: Callable[[], T]) -> T:
    """Repeats a call while the run does not answer because it starts or was killed."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("folder", type=Path, help="of the checkpoint, the weights and the log")
    parser.add_argument("--queue", required=True, help="queue.listen of the run")
    parser.add_argument("--policy", required=True, help="policy.listen of the run")
    parser.add_argument("--warm", type=Path, required=True, help="the model to begin with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shuffle-rewards", action="store_true", help="a control that must not learn")
    args = parser.parse_args()

    # A second thread beside a busy engine makes a step slower.
    torch.set_num_threads(1)
    recipe = tomllib.loads(args.recipe.read_text())
    trainer = Trainer(args.folder, Settings(**recipe["trainer"]), args.warm, args.seed)
    policy = rolldock.Policy(args.policy)

    def announce() -> None:
        # A killed run may have lost the announcement, and a killed trainer may not have made it.
        if patiently(policy.status)["announced"] < trainer.version:
            patiently(lambda: policy.announce_version(trainer.version, path=str(trainer.weights)))

    announce()
    groups = recipe["rollout"]["train_batch_size"]
    dataset = StreamingDataset(
        rolldock.Client(args.queue, patience_s=PATIENCE_S),
        groups=groups,
        at_least=groups,
        fields=Fields(extra=("advantage", "acc")),
    )
    log = (args.folder / "trainer.jsonl").open("a")
    # Rows that were taken ahead would be older when they are used.
    with StreamingDataLoader(dataset, prefetch=0) as loader:
        if trainer.taken is not None:
            loader.load_state_dict(trainer.taken)
        asked = time.time()
        for batch in loader:
            taken = time.time()
            (micro,) = batch
            rows, draw = padded(micro), trainer.draw()
            if args.shuffle_rewards:
                advantages = shuffled(rows.advantages, micro.groups, draw)
                rows = Rows(rows.tokens, rows.mask, rows.rollout_logprobs, advantages)
            staleness = trainer.version - micro.policy_versions.astype("int64")
            figures = trainer.train(rows, draw)
            trainer.save(loader.state_dict())
            # The version is announced before the ack, because the run may end after the ack.
            announce()
            batch.ack()
            figures |= {
                "step": trainer.version,
                "unix_s": time.time(),
                "rows": micro.rows,
                "accuracy": float(micro.extra["acc"].mean()),
                "staleness_mean": float(staleness.mean()),
                "staleness_max": int(staleness.max()),
                "wait_s": taken - asked,
                "train_s": time.time() - taken,
            }
            print(json.dumps(figures), file=log, flush=True)
            asked = time.time()


if __name__ == "__main__":
    main()
