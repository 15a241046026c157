#!/usr/bin/env python3
"""Measures the cost of building in fresh clones with empty target folders, and compares it with an older commit.

usage: bench/build.py [--only PART]... [--base COMMIT] [--keep DIR] [--json FILE]

The cost is CPU seconds, user and system. They depend on what else runs on the machine and beside it, so the two commits
are measured in turns: the first command of this commit before and after that of the older one, and the compilations
after a touch alternately. Nothing else should run meanwhile.

Parts: base (builds of the older commit; takes half an hour), head (builds of this commit), size (the shipped binary),
rates (the speed of the binaries of the profiles `dev` and `dist` in `rolldock-bench client`). Without --only all parts
are measured. If a bar does not hold, the exit code is 1. Changes that are not committed are not measured. Crates are
fetched before the clock runs. With --keep the clones stay in DIR, and a clone that an earlier call built there is not
measured again: its recorded cost is read. The parts can therefore be measured one after another, but not in turns.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASE = "5cf4ca0"
BOARD = "orchestrator/src/rollout/board.rs"
PARTS = ["base", "head", "size", "rates"]
# The incremental compilation is short, so single measurements differ much. The figure is their median.
TOUCHES = 3
TESTS = ["test", "--workspace", "--no-run", "--locked"]
# The compilation of the first command in the README.
FIRST = {"base": ["build", "--release", "--locked"], "head": ["build", "--locked"]}
RATIOS_AT_MOST = {"first command": 0.35, "first command and tests": 0.5, "tests after touching board.rs": 0.6}
SIZE_MB_AT_MOST = 40
RATE_AT_LEAST = 0.7
# The beginnings of the environment variables that choose compilers, flags, profiles, target folders and
# caches.
SETTINGS = (
    "CARGO_BUILD_",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_INCREMENTAL",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "RUSTC",
    "RUSTFLAGS",
)


def environment(target):
    """The caller's environment without compiler caches and settings: they would hide or change what is compiled."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(SETTINGS)}
    wrappers = {"RUSTC_WRAPPER": "", "RUSTC_WORKSPACE_WRAPPER": ""}
    return kept | wrappers | {"CARGO_TARGET_DIR": str(target), "CARGO_TERM_COLOR": "never"}


def refuse_global_settings():
    home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    for name in ["config.toml", "config"]:
        text = (home / name).read_text() if (home / name).exists() else ""
        if "[profile" in text or "rustflags" in text:
            sys.exit(f"{home / name}: expected neither profiles nor rustflags, which would change what is measured")


def cost_file(place, name):
    return place / f"{name}-cost.json"


class Clone:
    """A fresh clone of a commit, with a target folder of its own."""

    def __init__(self, place, name, commit):
        self.name = name
        self.folder = place / name
        self.target = place / f"{name}-target"
        self.cost = cost_file(place, name)
        self.environment = environment(self.target)
        if not self.folder.exists():
            subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(self.folder)], check=True)
            subprocess.run(["git", "checkout", "--quiet", "--detach", commit], cwd=self.folder, check=True)
        self.call(["cargo", "fetch", "--locked", "--quiet"])

    def call(self, command):
        """Runs a command in the clone. Returns its CPU seconds, including those of its child processes."""
        print(f"{self.name}: {' '.join(map(str, command))}", file=sys.stderr, flush=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-4000:]}")
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    def first(self):
        """The CPU seconds of the first command, with an empty target folder."""
        shutil.rmtree(self.target, ignore_errors=True)
        return self.call(["cargo", *FIRST[self.name]])

    def tests(self):
        """The CPU seconds of the tests' compilation."""
        return self.call(["cargo", *TESTS])

    def touched(self):
        """The CPU seconds of the tests' compilation after a file was touched."""
        os.utime(self.folder / BOARD)
        return self.tests()

    def rates(self, profile, folder):
        """Work per CPU second in `rolldock-bench client`: more is better."""
        self.call(["cargo", "build", "--locked", "--profile", profile, "-p", "rolldock", "-p", "rolldock-bench"])
        found = self.target / f"client-{folder}.json"
        # The exit code is ignored, because a build with little optimisation may miss the bench targets.
        bench = [self.target / folder / "rolldock-bench", "client", "--quick", "--json", found]
        subprocess.run(bench, cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL)
        figures = json.loads(found.read_text())["figures"]
        rate = {"MB/s": lambda ours: ours, "ms/request": lambda ours: 1000 / ours}
        return {
            figure["figure"].partition(" (")[0]: rate[figure["unit"]](figure["ours"])
            for figure in figures
            if figure["unit"] in rate
        }


def built(clones):
    """Builds the clones without a recorded cost. Returns each clone's CPU seconds of the figures in RATIOS_AT_MOST."""
    fresh = [clone for clone in clones.values() if not clone.cost.exists()]
    for clone in fresh:
        if clone.target.exists():
            sys.exit(f"{clone.target}: expected no target folder yet")
    firsts = {clone: [] for clone in fresh}
    # The first clone is measured again at the end, so both have the same mean time.
    for clone in fresh + fresh[:1]:
        firsts[clone].append(clone.first())
    tests = {clone: clone.tests() for clone in fresh}
    turns = [{clone: clone.touched() for clone in fresh} for _ in range(TOUCHES)]
    for clone in fresh:
        first, touched = statistics.mean(firsts[clone]), statistics.median(turn[clone] for turn in turns)
        cost = dict(zip(RATIOS_AT_MOST, [first, first + tests[clone], touched], strict=True))
        clone.cost.write_text(json.dumps(cost))
    return {name: json.loads(clone.cost.read_text()) for name, clone in clones.items()}


def row(name, now, then, ratio, bar, holds):
    return {"figure": name, "now": now, "then": then, "ratio": ratio, "bar": bar, "holds": holds}


def line(figure):
    def number(value, digits):
        return "" if value is None else f"{value:.{digits}f}"

    holds = {None: "", True: "yes", False: "NO"}[figure["holds"]]
    numbers = [number(figure["now"], 1), number(figure["then"], 1), number(figure["ratio"], 2)]
    return f"| {' | '.join([figure['figure'], *numbers, figure['bar'], holds])} |"


def measure(parts, place, base):
    rows = []
    commits = {"head": "HEAD", "base": base}
    sides = [name for name in commits if name in parts or cost_file(place, name).exists()]
    costs = built({name: Clone(place, name, commits[name]) for name in sides})
    for name, at_most in RATIOS_AT_MOST.items():
        now, then = (costs.get(side, {}).get(name) for side in ["head", "base"])
        ratio = now / then if now is not None and then else None
        if costs:
            holds = None if ratio is None else ratio <= at_most
            rows.append(row(f"{name}, CPU s", now, then, ratio, f"at most {at_most}", holds))
    head = Clone(place, "head", "HEAD") if {"size", "rates"} & set(parts) else None
    if "rates" in parts:
        dev, dist = head.rates("dev", "debug"), head.rates("dist", "dist")
        for name, rate in dist.items():
            ratio = dev[name] / rate
            title, bar = f"{name}: `dev` binary, compared with `dist`", f"at least {RATE_AT_LEAST}"
            rows.append(row(title, dev[name], rate, ratio, bar, ratio >= RATE_AT_LEAST))
    if "size" in parts:
        head.call(["cargo", "build", "--locked", "--profile", "dist"])
        size = (head.target / "dist" / "rolldock").stat().st_size / 1e6
        rows.append(row("shipped binary, MB", size, None, None, f"at most {SIZE_MB_AT_MOST}", size <= SIZE_MB_AT_MOST))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="measures this part (repeatable)")
    parser.add_argument("--base", default=BASE, help="the older commit")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="keeps the clones and target folders in DIR")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="writes the figures as JSON")
    options = parser.parse_args()
    refuse_global_settings()
    with tempfile.TemporaryDirectory(prefix="rolldock-build-") as temporary:
        place = options.keep or pathlib.Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        rows = measure(options.only or PARTS, place.resolve(), options.base)
    print("| figure | now | then | ratio | bar | holds |\n|---|---|---|---|---|---|")
    for figure in rows:
        print(line(figure))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    sys.exit(1 if any(figure["holds"] is False for figure in rows) else 0)


if __name__ == "__main__":
    main()
