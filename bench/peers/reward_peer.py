"""The Python scorers with which Rolldock's scorers are compared, for `rolldock-bench reward --peer`.

The scorers are verl's `math_dapo`, `gsm8k` and `math_reward`, each loaded from its own file, so that nothing
else of verl is imported, and the library `math-verify`. The process reads one JSON command per line from
standard input and answers each with one JSON line on standard output. It ends when standard input ends.

Where there is a choice, the quicker way is measured: the reference gets its texts as ready strings, which are
made outside of the measured time. Only processor time counts.
"""

import importlib.util
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from math_verify import parse, verify

# The releases of verl whose `math_dapo` our variants 2025 and 2026 reproduce. The other two scorers are equal
# in both releases.
RELEASES = {"2025": "0.9.0", "2026": "0.9.1"}


def load(environment: Path, release: str, name: str):
    file = environment / f"verl-{release}" / "verl" / "utils" / "reward_score" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_{release.replace('.', '_')}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Peer:
    def __init__(self, environment: Path) -> None:
        self.math_dapo = {year: load(environment, release, "math_dapo") for year, release in RELEASES.items()}
        self.gsm8k = load(environment, RELEASES["2026"], "gsm8k")
        self.math = load(environment, RELEASES["2026"], "math_reward")
        self.rows: list[tuple[str, str]] = []

    def load(self, file: str) -> dict:
        with open(file, encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        self.rows = [(row["response"], row["ground_truth"]) for row in rows]
        return {"rows": len(self.rows)}

    def round(self, variant: str) -> dict:
        """Scores all rows. Returns the seconds of processor time, and the number of right responses."""
        score, right = self.math_dapo[variant].compute_score, 0
        started = time.process_time()
        for response, truth in self.rows:
            right += score(response, truth)["score"] > 0
        return {"seconds": time.process_time() - started, "right": right}

    def verdicts(self, response: str, truth: str) -> dict:
        """The verdict of every scorer, in the shape of `bench/reward/src/fuzz.rs`."""
        found = {}
        for year, module in self.math_dapo.items():
            for box in (False, True):
                said = module.compute_score(response, truth, strict_box_verify=box)
                name = f"math_dapo {year}{' strict_box' if box else ''}"
                found[name] = [float(said["score"]), float(said["acc"]), said["pred"]]
        for method in ("strict", "flexible"):
            score = self.gsm8k.compute_score(response, truth, method=method)
            found[f"gsm8k {method}"] = [
                float(score),
                float(score),
                self.gsm8k.extract_solution(response, method),
            ]
        found["math"] = float(self.math.compute_score(response, truth))
        found["normalize"] = self.math_dapo["2025"].normalize_final_answer(truth)
        return found

    def score(self, rows: list[list[str]]) -> dict:
        return {"verdicts": [self.verdicts(response, truth) for response, truth in rows]}

    def verify(self, pairs: list[list[str]]) -> dict:
        """The verdicts of `math-verify` on pairs of an answer and a truth.

        Both are put in a box, the form that `math-verify` reads best. Its own time-outs apply.
        """
        said = []
        for answer, truth in pairs:
            gold, target = parse(boxed(truth)), parse(boxed(answer))
            said.append({"equal": bool(verify(gold, target)), "truth": read(gold), "answer": read(target)})
        return {"said": said}


def boxed(answer: str) -> str:
    return answer if answer.startswith("\\boxed{") else f"\\boxed{{{answer}}}"


def read(parsed: list) -> str:
    """How `math-verify` has read an answer: the first value that it parsed, with the type of the value."""
    return f"{type(parsed[0]).__name__} {parsed[0]}"[:200] if parsed else "nothing"


def main() -> None:
    # The scorers print errors to standard output. It is redirected to standard error, which is the log, and
    # the answers go to a copy of the original standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = Peer(Path(sys.argv[2]))

    def answer(value: dict) -> None:
        print(json.dumps(value), file=answers, flush=True)

    packages = [
        f"{package} {version(package)}" for package in ("math-verify", "latex2sympy2_extended", "sympy")
    ]
    releases = [f"verl {release}" for release in RELEASES.values()]
    answer({"versions": ", ".join([f"python {sys.version.split()[0]}", *packages, *releases])})
    do = {"load": peer.load, "round": peer.round, "score": peer.score, "verify": peer.verify}
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(do[command.pop("do")](**command))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
            raise


if __name__ == "__main__":
    main()
