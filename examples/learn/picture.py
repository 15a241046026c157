"""Draws the curves of learning runs: `python picture.py runs/learn/results.json learning.svg`.

It needs matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rolldock", "font.size": 10})
COLORS = {"sync": "tab:blue", "fully_async": "tab:orange", "control": "tab:gray"}
NAMES = {
    "sync": "sync",
    "fully_async": "fully_async, staleness up to 2",
    "control": "sync, shuffled rewards",
}
WAYS = ("-", "--", ":")


def drawn(results: list[dict[str, Any]], file: Path) -> None:
    """Draws the accuracy, the staleness and the step time of each run over its steps."""
    figure, (accuracy, staleness, time) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for result in results:
        kind = "control" if result["shuffle_rewards"] else result["mode"]
        first = result["seed"] == 1
        look = {"color": COLORS[kind], "linestyle": WAYS[(result["seed"] - 1) % 3], "linewidth": 1.4}
        curve = [(point["version"], point["accuracy"]) for point in result["curve"]]
        curve.append((result["steps"], result["final"]))
        accuracy.plot(*zip(*curve, strict=True), label=NAMES[kind] if first else None, **look)
        steps = [line["step"] for line in result["trained"]]
        staleness.plot(steps, [line["staleness_mean"] for line in result["trained"]], **look)
        time.plot(steps, [line["wait_s"] + line["train_s"] for line in result["trained"]], **look)
    accuracy.axhline(0.8, color="black", linewidth=0.6)
    accuracy.set(title="accuracy on held-out problems", xlabel="step", ylim=(0, 1))
    accuracy.legend(loc=(0.4, 0.3), fontsize=8)
    staleness.set(title="staleness of a step's rows, mean", xlabel="step", ylim=(-0.1, 2.2))
    time.set(title="time of a step, seconds", xlabel="step")
    time.set_ylim(bottom=0)
    written(figure, file)


def written(figure: Any, file: Path) -> None:
    """Writes a figure. Without a date, equal pictures are equal files."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    drawn(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
