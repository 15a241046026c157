#!/usr/bin/env python3
"""Compares two builds of `rolldock-bench`, in turns on one machine.

usage: bench/pairs.py [--rounds N] [--json FILE] BEFORE AFTER COMMAND [COMMAND...]

BEFORE and AFTER are binaries. COMMAND is a command of both; quote it to add options: "queue --quick". In each
round both binaries run each command; the binary that runs first alternates. The table has the figures that both
binaries print: the medians, and the median of the rounds' ratios AFTER / BEFORE with the least and the greatest ratio.

A figure is WORSE if the median ratio is worse by more than a tenth, and the ratio is worse in every round. Rates are
better if they are greater. Times, bytes and CPU are better if they are less. A figure of another unit is WORSE only if
its bar holds with BEFORE and fails with AFTER in every round. If a figure is WORSE, the exit code is 1.
"""

import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

MORE_IS_BETTER = {"GB/s", "MB/s", "rows/s", "requests/s", "scores/s"}
LESS_IS_BETTER = {"s", "ms", "us", "ns", "ms/request", "bytes", "KB", "MB", "GB", "of a core", "cores"}
NOISE = 0.1


def figures(binary, command, folder):
    """The figures of one run, by name."""
    file = pathlib.Path(folder) / "figures.json"
    file.unlink(missing_ok=True)
    # The exit code is ignored, because a bar that does not hold changes it too.
    done = subprocess.run(
        [binary, *shlex.split(command), "--json", file],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if not file.exists():
        sys.exit(f"{binary} {command}: expected figures, but it failed:\n{done.stderr[-4000:]}")
    return {figure["figure"]: figure for figure in json.loads(file.read_text())["figures"]}


def compared(name, pairs):
    """One row of the table, from the figure's pairs (before, after) of all rounds."""
    before, after = [[figure["ours"] for figure in side] for side in zip(*pairs, strict=True)]
    unit = pairs[0][0]["unit"]
    ratios = [new / old for old, new in zip(before, after, strict=True) if old]
    ratio = statistics.median(ratios) if len(ratios) == len(pairs) else None
    if ratio is not None and unit in MORE_IS_BETTER:
        is_worse = ratio < 1 / (1 + NOISE) and max(ratios) < 1
    elif ratio is not None and unit in LESS_IS_BETTER:
        is_worse = ratio > 1 + NOISE and min(ratios) > 1
    else:
        is_worse = all(old["holds"] and new["holds"] is False for old, new in pairs)
    medians = [statistics.median(before), statistics.median(after)]
    return {
        "figure": name,
        "unit": unit,
        "before": medians[0],
        "after": medians[1],
        "ratio": ratio,
        "ratios": ratios,
        "is_worse": is_worse,
    }


def line(row):
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})"
    worse = "WORSE" if row["is_worse"] else ""
    cells = [row["figure"], row["unit"], f"{row['before']:.4g}", f"{row['after']:.4g}", ratio, worse]
    return f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("commands", nargs="+")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds {asked.rounds}: expected 1 or more")
    for binary in [asked.before, asked.after]:
        if not binary.is_file():
            parser.error(f"{binary}: expected a file, a build of rolldock-bench")
    binaries = [asked.before.resolve(), asked.after.resolve()]

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for command in asked.commands:
            rounds = []
            for number in range(asked.rounds):
                order = [0, 1] if number % 2 == 0 else [1, 0]
                found = {}
                for side in order:
                    print(f"round {number + 1}: {binaries[side]} {command}", file=sys.stderr, flush=True)
                    found[side] = figures(binaries[side], command, folder)
                rounds.append((found[0], found[1]))
            in_all = set.intersection(*(set(side) for pair in rounds for side in pair))
            if not in_all:
                sys.exit(f"{command}: expected figures that both binaries print, found none")
            names = [name for name in rounds[0][1] if name in in_all]
            rows += [compared(f"{command}: {name}", [(old[name], new[name]) for old, new in rounds]) for name in names]

    print("| figure | unit | before | after | after / before | |\n|---|---|---|---|---|---|")
    for row in rows:
        print(line(row))
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2))
    sys.exit(any(row["is_worse"] for row in rows))


if __name__ == "__main__":
    main()
