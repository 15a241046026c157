"""Draws the curves of the agent's runs: `python picture_agent.py results.json learning-agent.svg`.

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
from picture import WAYS, written


def drawn(results: list[dict[str, Any]], file: Path) -> None:
    """Draws the accuracy on held-out questions and the share of right agents over the steps."""
    figure, (held_out, agents) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for result in results:
        is_control = result["shuffle_rewards"]
        look: dict[str, Any] = {
            "color": "tab:gray" if is_control else "tab:blue",
            "linestyle": WAYS[(result["seed"] - 1) % 3],
            "linewidth": 1.4,
        }
        name = "shuffled rewards" if is_control else "rewards, three seeds"
        curve = [(point["version"], point["accuracy"]) for point in result["curve"]]
        held_out.plot(*zip(*curve, strict=True), label=name if result["seed"] == 1 else None, **look)
        steps = [line["step"] for line in result["trained"]]
        agents.plot(steps, [line["accuracy"] for line in result["trained"]], **look)
    held_out.axhline(0.6, color="black", linewidth=0.6)
    held_out.axhline(0.3, color="black", linewidth=0.6)
    held_out.set(title="accuracy on held-out questions", xlabel="step", ylim=(0, 1))
    held_out.legend(loc=(0.45, 0.45), fontsize=8)
    agents.set(title="share of the 64 agents of a step that are right", xlabel="step", ylim=(0, 1))
    written(figure, file)


if __name__ == "__main__":
    drawn(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
