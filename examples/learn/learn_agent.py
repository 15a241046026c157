"""Teaches a small model to use a calculator over two turns, through `rolldock gateway`: a vLLM server, the
gateway, an agent that knows only a base URL, and a trainer.

    python learn_agent.py                         one run
    python learn_agent.py --shuffle-rewards       the control, which must not learn
    python learn_agent.py --all                   three seeds, and the control

It needs what `learn.py` needs. docs/src/learning.md describes it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from calculator import Question, questions, reward_of, write_calculator_tokenizer
from calculator_agent import answer_of
from calculator_measure import accuracy
from gateway import Gateway, Trajectory
from model import load, new_model, save
from processes import Engine, Process
from trainer import Rows, Settings, Trainer, padded

import rolldock
from rolldock.torch import Fields, MicroBatch, StreamingDataLoader, StreamingDataset

HERE = Path(__file__).parent
SEEDS = (1, 2, 3)
#: The questions of a step, and the agents that work on each of them.
GROUPS, SAMPLES = 8, 8
SETTINGS = Settings(
    clip_ratio_low=0.2,
    clip_ratio_high=0.28,
    learning_rate=3e-4,
    betas=(0.9, 0.98),
    warmup_steps=5,
    gradient_clip=1.0,
    mini_batch_rows=64,
)
#: The accuracy that every run must reach, and the accuracy that the control must not exceed.
LEARNED, NOT_LEARNED = 0.6, 0.3
#: The steps between two measurements on the held-out questions.
MEASURED_EVERY = 15
#: The longest wait for the rows of a step, and for the warm model, in seconds.
ROWS_S_MAX, WARM_S_MAX = 120.0, 600.0


@dataclass(frozen=True)
class Plan:
    """A run."""

    seed: int
    steps: int
    shuffle_rewards: bool = False

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return "-".join(["agent", *["shuffled"] * self.shuffle_rewards, str(self.seed)])


class Agents:
    """Runs agents on trajectories of the gateway, and rewards them."""

    def __init__(self, gateway: Gateway, pool: ThreadPoolExecutor, plan: Plan) -> None:
        self._gateway, self._pool, self._plan = gateway, pool, plan
        self._draw = random.Random(plan.seed)
        self._train, _ = questions()

    def play(self, step: int) -> float:
        """Runs the agents of a step, and returns the share of right answers. In the control, the rewards of
        each group are in a random order.
        """
        drawn = self._draw.sample(self._train, GROUPS)
        tasks = [(f"step-{step}-{place}", one) for place, one in enumerate(drawn) for _ in range(SAMPLES)]
        played = list(self._pool.map(self._one, tasks))
        rewards = [reward_of(one, said) for (_, one), (_, said) in zip(tasks, played, strict=True)]
        given = rewards_in_random_order(rewards, self._draw) if self._plan.shuffle_rewards else rewards
        trajectories = [trajectory for trajectory, _ in played]
        list(self._pool.map(self._gateway.complete, trajectories, given))
        return sum(rewards) / len(rewards)

    def _one(self, task: tuple[str, Question]) -> tuple[Trajectory, str]:
        group, question = task
        trajectory = self._gateway.open(group, SAMPLES, question.text)
        return trajectory, answer_of(trajectory.base_url, question.text)


def rewards_in_random_order(rewards: list[float], draw: random.Random) -> list[float]:
    """Returns the rewards. Within each group, they are in a random order."""
    groups = [rewards[start : start + SAMPLES] for start in range(0, len(rewards), SAMPLES)]
    return [reward for group in groups for reward in draw.sample(group, len(group))]


def rows_of(batch: MicroBatch, version: int) -> Rows:
    """Returns the rows that teach something: the rows of groups with different rewards.

    Raises:
        ValueError: an agent's turns are not one row, or a token was not sampled from the newest weights.
    """
    if batch.rows != GROUPS * SAMPLES:
        raise ValueError(f"expected a row for each of {GROUPS * SAMPLES} agents, found {batch.rows} rows")
    versions = sorted(set(batch.policy_versions.tolist()))
    if versions != [version]:
        raise ValueError(f"expected rows of version {version}, found versions {versions}")
    rows = padded(batch)
    teaches = rows.advantages != 0
    return rows.at(teaches) if teaches.any() else rows


def trained(plan: Plan, folder: Path, engine: Engine, gateway: Gateway, trainer: Trainer) -> dict[str, Any]:
    """Trains, and returns the curve of the accuracy on held-out questions before the last step, with a log of
    the steps.
    """
    held_out = [question.text for question in questions()[1]]
    curve = [{"version": 0, "accuracy": accuracy(trainer.model, held_out)}]
    dataset = StreamingDataset(
        rolldock.Client(gateway.queue_url),
        groups=GROUPS,
        at_least=GROUPS,
        wait_s=ROWS_S_MAX,
        fields=Fields(extra=("advantage", "reward")),
    )
    steps = []
    with (
        StreamingDataLoader(dataset, prefetch=0) as loader,
        ThreadPoolExecutor(GROUPS * SAMPLES) as pool,
        (folder / "trainer.jsonl").open("w") as log,
    ):
        agents = Agents(gateway, pool, plan)
        for step in range(1, plan.steps + 1):
            began = time.monotonic()
            right = agents.play(step)
            (batch,) = next(loader)
            played = time.monotonic()
            rows = rows_of(batch, trainer.version)
            figures = trainer.train(rows, trainer.draw())
            trainer.save(loader.state_dict())
            engine.load(trainer.weights, version=trainer.version)
            figures |= {
                "step": step,
                "accuracy": right,
                "rows": len(rows.tokens),
                "tokens": int(rows.mask.sum()),
                "agents_s": played - began,
                "train_s": time.monotonic() - played,
            }
            steps.append(figures)
            print(json.dumps(figures), file=log, flush=True)
            if step % MEASURED_EVERY == 0 and step != plan.steps:
                curve.append({"version": step, "accuracy": accuracy(trainer.model, held_out)})
    return {"curve": curve, "trained": steps}


def result_of(plan: Plan, out: Path, engine: Engine, warm: Path) -> dict[str, Any]:
    """Runs a plan, writes its figures to `result.json` in the plan's folder, and returns the figures."""
    folder = out / plan.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    engine.load(warm)
    began = time.monotonic()
    trainer = Trainer(folder, SETTINGS, warm, plan.seed)
    with Gateway(engine.url, out / "tokenizer", folder) as gateway:
        found = trained(plan, folder, engine, gateway, trainer)
    seconds = time.monotonic() - began
    # The server loaded its last weights from this folder.
    final = accuracy(load(trainer.weights), [question.text for question in questions()[1]])
    found["curve"].append({"version": trainer.version, "accuracy": final})
    initial = found["curve"][0]["accuracy"]
    result = asdict(plan) | {"seconds": round(seconds, 1), "initial": initial, "final": final} | found
    (folder / "result.json").write_text(json.dumps(result))
    print(
        f"{plan.name}: {plan.steps} steps in {seconds:.0f} s, accuracy {initial:.3f} to {final:.3f}",
        flush=True,
    )
    return result


def warm_of(warming: Process, warm: Path) -> Path:
    """Waits until the warm model is trained, and returns its folder."""
    end = time.monotonic() + WARM_S_MAX
    while not warming.has_ended():
        if time.monotonic() > end:
            raise SystemExit(f"no warm model after {WARM_S_MAX:.0f} s:\n{warming.log_end()}")
        time.sleep(0.2)
    return warm


def plans_of(args: argparse.Namespace) -> list[Plan]:
    """Returns the runs that the arguments ask for."""
    if not args.all:
        return [Plan(args.seed, args.steps, args.shuffle_rewards)]
    return [*(Plan(seed, args.steps) for seed in SEEDS), Plan(SEEDS[0], args.steps, shuffle_rewards=True)]


def failure_of(result: dict[str, Any], learned: float) -> str | None:
    """Returns the expectation that a run did not meet, or `None` if it met all."""
    name = f"seed {result['seed']}" + ", the control" * result["shuffle_rewards"]
    initial, final = result["initial"], result["final"]
    if initial >= NOT_LEARNED:
        return f"expected to begin below {NOT_LEARNED}, found {initial:.3f} ({name})"
    if result["shuffle_rewards"] and final > NOT_LEARNED:
        return f"expected to end at most at {NOT_LEARNED}, found {final:.3f} ({name})"
    if not result["shuffle_rewards"] and final < learned:
        return f"expected to end at least at {learned}, found {final:.3f} ({name})"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=SEEDS[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--shuffle-rewards", action="store_true", help="the control")
    parser.add_argument("--all", action="store_true", help="three seeds, and the control")
    parser.add_argument(
        "--learned", type=float, default=LEARNED, help="the accuracy to reach, %(default)s by default"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/learn_agent"), help="%(default)s by default")
    args = parser.parse_args()

    # A second thread beside a busy engine makes a step slower.
    torch.set_num_threads(1)
    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    write_calculator_tokenizer(out / "tokenizer")
    # The server starts with other weights, while another process trains the warm model.
    save(new_model(seed=2), out / "random")
    warm = out / "warm"
    warming = Process("warm-up", [sys.executable, str(HERE / "calculator_warm_up.py"), str(warm)], out)
    warming.start()
    try:
        with Engine(out / "random", out, name="calculator", tokenizer=out / "tokenizer") as engine:
            warm_of(warming, warm)
            results = [result_of(plan, out, engine, warm) for plan in plans_of(args)]
    finally:
        warming.kill()
    (out / "results.json").write_text(json.dumps(results))
    failures = [failure for result in results if (failure := failure_of(result, args.learned))]
    if failures:
        raise SystemExit("; ".join(failures))


if __name__ == "__main__":
    main()
