"""Teaches a small model to add, by reinforcement learning: a vLLM server, a run of Rolldock, and a trainer.

    python learn.py                               one run in sync
    python learn.py --mode fully_async --seed 2
    python learn.py --shuffle-rewards             the control, which must not learn
    python learn.py --kill                        with kill -9 of trainer, run and server in the middle
    python learn.py --all                         three seeds in both modes, and the control

It needs Linux and an environment with the `rolldock` wheel, torch, transformers and vLLM. It starts all
processes itself, on 127.0.0.1. docs/src/learning.md describes it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arithmetic import problems, write_data
from processes import Engine, Process, free_port, rolldock_binary
from warm_up import warm_model

HERE = Path(__file__).parent
SEEDS = (1, 2, 3)
MODES = ("sync", "fully_async")
#: The accuracy that every run must reach, and the accuracy that the control must not exceed.
LEARNED, NOT_LEARNED = 0.80, 0.25
#: The longest time of a run, in seconds. A run that takes longer hangs.
RUN_S_MAX = 900.0
#: The steps of the trainer after which `--kill` kills each process.
KILLS = {10: "trainer", 15: "run", 20: "engine"}


@dataclass(frozen=True)
class Plan:
    """A run."""

    mode: str
    seed: int
    steps: int
    shuffle_rewards: bool = False
    kill: bool = False

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        kinds = [self.mode] + ["shuffled"] * self.shuffle_rewards + ["killed"] * self.kill
        return "-".join([*kinds, str(self.seed)])


class Run:
    """A run of Rolldock and its trainer, in one folder."""

    def __init__(self, plan: Plan, out: Path, engine: Engine, warm: Path) -> None:
        self._plan, self._engine = plan, engine
        self.folder = out / plan.name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        queue, policy = (f"127.0.0.1:{free_port()}" for _ in range(2))
        recipe = HERE / "recipe.toml"
        settings = {
            "model.tokenizer": str(out / "data" / "tokenizer"),
            "data.train": str(out / "data" / "train.jsonl"),
            "data.validation": str(out / "data" / "held_out.jsonl"),
            "data.seed": str(plan.seed),
            "policy.mode": plan.mode,
            "policy.listen": policy,
            "queue.listen": queue,
        }
        if plan.mode == "fully_async":
            settings["policy.max_staleness"] = "2"
        command = [rolldock_binary(), "run", str(recipe), "--no-progress", "--endpoint", engine.url]
        command += ["--out", str(self.folder / "run"), "--steps", str(plan.steps)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self._run = Process("run", command, self.folder)
        command = [sys.executable, str(HERE / "trainer.py"), str(recipe), str(self.folder)]
        command += ["--queue", f"http://{queue}", "--policy", f"http://{policy}"]
        command += ["--warm", str(warm), "--seed", str(plan.seed)]
        self._trainer = Process(
            "trainer", command + ["--shuffle-rewards"] * plan.shuffle_rewards, self.folder
        )

    def trained(self) -> list[dict[str, Any]]:
        """The log of the trainer, with one entry for each step."""
        steps = {line["step"]: line for line in lines_of(self.folder / "trainer.jsonl")}
        return [steps[step] for step in sorted(steps)]

    def to_end(self) -> float:
        """Runs until both processes have ended, and returns the duration in seconds."""
        kills = dict(KILLS) if self._plan.kill else {}
        began = time.monotonic()
        self._run.start()
        self._trainer.start()
        try:
            while not (self._run.has_ended() and self._trainer.has_ended()):
                if time.monotonic() - began > RUN_S_MAX:
                    raise SystemExit(f"expected an end within {RUN_S_MAX:.0f} s; see {self.folder}")
                for step in [step for step in kills if step <= len(self.trained())]:
                    self._kill(kills.pop(step))
                time.sleep(0.2)
        finally:
            self._run.kill()
            self._trainer.kill()
        if kills:
            raise SystemExit(f"expected more steps than {len(self.trained())}: {kills} were not killed")
        return time.monotonic() - began

    def _kill(self, name: str) -> None:
        process = {"trainer": self._trainer, "run": self._run, "engine": self._engine.process}[name]
        process.kill()
        process.start()
        print(f"{self._plan.name}: killed the {name} with -9 and started it again", flush=True)


def lines_of(file: Path) -> list[Any]:
    """Returns the complete lines of a file of JSON lines. Returns none if the file does not exist."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def result_of(plan: Plan, out: Path, engine: Engine, warm: Path) -> dict[str, Any]:
    """Runs a plan, writes its figures to `result.json` in the plan's folder, and returns the figures.

    The curve has the run's measurements on the held-out problems, with the server's weights. This process
    measures `final`, with torch and the last checkpoint.
    """
    engine.load(warm)
    run = Run(plan, out, engine, warm)
    seconds = run.to_end()
    # `warm_up` has imported this module already, so the import takes no time.
    import model

    held_out = problems()[1]
    trained = run.trained()
    result = asdict(plan) | {
        "seconds": round(seconds, 1),
        "initial": model.accuracy(model.load(warm), held_out),
        "final": model.accuracy(model.load(run.folder / "weights" / f"step-{plan.steps}"), held_out),
        "curve": [
            {"version": line["policy_version"], "accuracy": line["mean"]}
            for line in lines_of(run.folder / "run" / "validation.jsonl")
        ],
        "trained": trained,
    }
    (run.folder / "result.json").write_text(json.dumps(result))
    if len(trained) != plan.steps:
        raise SystemExit(f"expected {plan.steps} steps of the trainer, found {len(trained)}")
    staleness = max(line["staleness_max"] for line in trained)
    print(
        f"{plan.name}: {plan.steps} steps in {seconds:.0f} s, accuracy {result['initial']:.3f} to "
        f"{result['final']:.3f}, staleness up to {staleness}",
        flush=True,
    )
    return result


def plans_of(args: argparse.Namespace) -> list[Plan]:
    """Returns the runs that the arguments ask for."""
    if not args.all:
        return [Plan(args.mode, args.seed, args.steps, args.shuffle_rewards, args.kill)]
    six = [Plan(mode, seed, args.steps) for mode, seed in itertools.product(MODES, SEEDS)]
    return [*six, Plan("sync", SEEDS[0], args.steps, shuffle_rewards=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=MODES, default="sync")
    parser.add_argument("--seed", type=int, default=SEEDS[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--shuffle-rewards", action="store_true", help="the control")
    parser.add_argument("--kill", action="store_true", help="kill -9 of each process in the middle")
    parser.add_argument("--all", action="store_true", help="three seeds in both modes, and the control")
    parser.add_argument(
        "--learned", type=float, default=LEARNED, help="the accuracy to reach, %(default)s by default"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/learn"), help="%(default)s by default")
    args = parser.parse_args()
    if args.kill and args.steps <= max(KILLS):
        parser.error(f"--kill needs more than {max(KILLS)} steps, found --steps {args.steps}")

    out = args.out.absolute()
    (out / "data").mkdir(parents=True, exist_ok=True)
    write_data(out / "data")
    warm = warm_model(out / "warm")
    with Engine(warm, out) as engine:
        results = [result_of(plan, out, engine, warm) for plan in plans_of(args)]
    (out / "results.json").write_text(json.dumps(results))
    failed = [
        result
        for result in results
        if (result["final"] > NOT_LEARNED if result["shuffle_rewards"] else result["final"] < args.learned)
    ]
    if failed:
        raise SystemExit(
            f"expected at least {args.learned} of each run and at most {NOT_LEARNED} of the control, found "
            + ", ".join(f"{result['final']:.3f} ({result['mode']} {result['seed']})" for result in failed)
        )


if __name__ == "__main__":
    main()
