"""Runs agents from PyPI, unmodified, as the `[agent]` of a run, while a trainer announces versions in the middle of
their turns. The groups are accepted, and their rows are what the engine says it made. Needs pyarrow.

python run.py BINARY ENVIRONMENTS AGENT...
"""

import argparse
import json
import pathlib
import re
import tempfile
import threading
import time
import urllib.request

import compare
from main import AGENTS, FOLDER
from world import ROOT, Engine, Process, Queue

STEPS, GROUPS, SAMPLES = 2, 2, 2
PATIENCE_S = 300
# A turn takes about 0.3 s, which leaves time for an update in its middle.
TIME_SCALE, MIDDLE_S = 2.0, 0.1

RECIPE = """
[model]
name = "simulated"
tokenizer = {tokenizer}
[data]
train = {data}
[fleet]
endpoints = [{engine}]
[rollout]
workers = 2
samples_per_prompt = {samples}
train_batch_size = {groups}
gen_batch_size = {groups}
max_response_length = 2048
[filter]
enable = false
[reward]
scorer = "math_dapo"
[policy]
mode = "fully_async"
max_staleness = 1000
listen = "127.0.0.1:0"
update = {{ pause = {pause} }}
[queue]
listen = "127.0.0.1:0"
capacity_rows = 1024
[agent]
command = {command}
env = {{ AGENT_MODEL = "simulated" }}
concurrency = 4
[run]
steps = {steps}
"""


class Run(Engine):
    """A run over an engine, and its trainer."""

    def __init__(self, binary, folder, environments, agent, pause):
        program, ways, script = AGENTS[agent]
        super().__init__(binary, folder, script=script, time_scale=TIME_SCALE)
        # The run names the gateway in variables of the vendors.
        words = [environments.resolve() / agent / "bin/python", FOLDER / program, ways[0]]
        shell = 'export AGENT_BASE_URL="$ANTHROPIC_BASE_URL"; exec "$@"'
        recipe = RECIPE.format(
            tokenizer=json.dumps(str(self.tokenizer)),
            data=json.dumps(str(ROOT / "data/arithmetic/train.jsonl")),
            engine=json.dumps(self.relay.url),
            pause=json.dumps(pause),
            command=json.dumps(["sh", "-c", shell, "sh", *map(str, filter(None, words))]),
            samples=SAMPLES,
            groups=GROUPS,
            steps=STEPS,
        )
        (folder / "recipe.toml").write_text(recipe)
        words = [binary, "run", folder / "recipe.toml", "--out", folder / "run"]
        self.run = Process(folder, "run", words, r"serving the queue at (http://[\w.:]+)")
        self.queue = Queue(self.run.url)
        self.policy = re.search(r"announced at (http://[\w.:]+)/v1/policy", self.run.log.read_text()).group(1)
        self.is_over = threading.Event()
        self.announced = 0

    def __exit__(self, *error):
        self.is_over.set()
        self.run.stop()
        super().__exit__(*error)

    def announce(self):
        """Announces a version in the middle of a turn, as long as there are turns."""
        while not self.is_over.is_set():
            begun = self.relay.begun
            while self.relay.begun == begun and not self.is_over.wait(0.005):
                pass
            time.sleep(MIDDLE_S)
            if self.is_over.is_set():
                return
            self.announced += 1
            body = json.dumps({"version": self.announced}).encode()
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(self.policy + "/v1/policy/announce", body, headers)
            urllib.request.urlopen(request, timeout=60).read()
            wait = f"/v1/policy/wait?version={self.announced}&timeout_s=60"
            urllib.request.urlopen(self.policy + wait, timeout=120).read()

    def rows(self):
        """The rows of all groups."""
        rows = []
        for _ in range(STEPS * GROUPS):
            lease, table = self.queue.take("train", task="train", groups=1, wait_ms=PATIENCE_S * 1000)
            rows += table.to_pylist()
            self.queue.lease("train", lease, "ack")
        return rows


def split_turns(rows):
    """The number of turns with tokens of two versions."""
    split = 0
    for row in rows:
        bounds = {span["start"] for span in row["version_spans"]}
        turns = zip(row["turn_starts"], row["turn_ends"], strict=True)
        split += sum(any(start < bound < end for bound in bounds) for start, end in turns)
    return split


def drawn_again(exchanges):
    """The number of requests that draw an aborted turn again from its prompt. Request ids end with the number of the
    request in its turn."""
    prompts = {exchange.request["request_id"]: exchange.request["token_ids"] for exchange in exchanges}
    firsts = {name: f"{name.rpartition('-')[0]}-0" for name in prompts if not name.endswith("-0")}
    return sum(prompts[name] == prompts.get(first) for name, first in firsts.items())


def play(binary, environments, agent, pause, folder):
    began = time.monotonic()
    with Run(binary, folder, environments, agent, pause) as run:
        announcing = threading.Thread(target=run.announce, daemon=True)
        announcing.start()
        rows = run.rows()
        run.is_over.set()
        announcing.join()
        code = run.run.process.wait(PATIENCE_S)
        log = run.run.log.read_text()
        exchanges = run.relay.generated()
    done = f"done: {STEPS} steps; {STEPS * GROUPS} groups accepted"
    assert code == 0 and done in log, f"code={code}: {log}"
    names = {row["trajectory_uid"] for row in rows}
    assert len(names) == STEPS * GROUPS * SAMPLES, names
    # The run may have begun groups beyond its last step. The gateway begins request ids with the trajectory's name.
    beginnings = tuple(f"{name}-" for name in names)
    mine = [exchange for exchange in exchanges if exchange.request["request_id"].startswith(beginnings)]
    turns, tokens = compare.compare(rows, mine)
    assert turns > len(names), "one turn shows nothing about what continues it"
    split = split_turns(rows)
    free = [exchange for exchange in mine if not exchange.request["sampling_params"].get("structured_outputs")]
    if pause == "keep" or free:
        assert split, "no turn has tokens of two versions"
    else:
        # A grammar begins anew with each request, so a turn with a grammar is drawn again after an abort.
        assert not split, "a turn with a grammar has tokens of two versions"
        assert drawn_again(mine), "no turn was aborted"
    newest = max(row["policy_version_max"] for row in rows)
    assert 0 < newest <= run.announced, f"rows have version {newest}, announced were {run.announced}"
    print(
        f"{agent} in a run, pause={pause}: groups={STEPS * GROUPS} turns={turns} tokens={tokens} "
        f"turns_of_two_versions={split} versions={run.announced} in {time.monotonic() - began:.1f} s",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("environments", type=pathlib.Path)
    parser.add_argument("agents", nargs="+", choices=AGENTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for number, agent in enumerate(options.agents):
            pause = ("keep", "abort")[number % 2]
            folder = pathlib.Path(temporary) / f"{agent}-run"
            play(options.binary.resolve(), options.environments, agent, pause, folder)


if __name__ == "__main__":
    main()
