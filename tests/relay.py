"""Tests that the queue of a run relays columns between roles, and that the death of a role or of the run only costs
time. Makes one run without a fault, and one run in which each role and the run itself are killed. Compares the rows
that the two trainers got.

python3 tests/relay.py BINARY [FOLDER]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from ports import free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROLES = ("ref", "critic", "train")
STEPS, GROUPS, SAMPLES = 6, 8, 4
ROWS = STEPS * GROUPS * SAMPLES
# The rows of one batch of a role.
BATCH_ROWS = 2 * SAMPLES
DEADLINE_S = 600
COMPARED = ("response_ids", "reward", "advantage", "values", "ref_log_prob")

RECIPE = """
[model]
name = "simulated"
tokenizer = "builtin"
[data]
train = "{root}/data/arithmetic/train.jsonl"
max_prompt_length = 256
[fleet.simulated]
servers = 2
time_scale = 0.01
mean_response_length = 40
[rollout]
workers = 2
samples_per_prompt = {samples}
train_batch_size = {groups}
gen_batch_size = 16
max_gen_batches = 16
max_response_length = 256
[reward]
scorer = "math_dapo"
[policy]
mode = "fully_async"
[queue]
capacity_rows = 48
listen = "127.0.0.1:{port}"
[queue.tasks]
ref = {{ columns = ["rollout_logprobs"] }}
critic = {{ columns = ["response_ids"] }}
train = {{ columns = ["response_ids", "advantage", "ref_log_prob", "values"] }}
[queue.columns]
ref_log_prob = "list<float32>"
[run]
steps = {steps}
"""


class World:
    """A run and its three roles. Each of them is a process."""

    def __init__(self, binary, folder, name):
        self.binary, self.name = binary, name
        self.folder = folder / name
        self.folder.mkdir()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.out, self.trained = self.folder / "run", self.folder / "trained"
        self.trained.touch()
        self.recipe = self.folder / "recipe.toml"
        self.recipe.write_text(RECIPE.format(root=ROOT, port=port, samples=SAMPLES, groups=GROUPS, steps=STEPS))
        self.processes = {}
        self.begun = None

    def start(self, who):
        if who == "run":
            first = [self.recipe, "--out", self.out]
            words = [self.binary, "run", *(first if not self.out.exists() else ["--resume", self.out])]
        else:
            words = [sys.executable, ROOT / "queue/examples/relay.py", self.url, who, self.trained]
        with open(self.folder / f"{who}.log", "a") as log:
            environment = {**os.environ, "RELAY_WORK_S": "0.05"}
            process = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log, env=environment)
        self.processes[who] = process

    def rows(self):
        """The rows that the trainer has received so far. An incomplete line is a row of a batch that was not acked."""
        rows = []
        for line in self.trained.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                pass
        return rows

    def check_not_failed(self, who):
        code = self.processes[who].poll()
        log = (self.folder / f"{who}.log").read_text()
        assert code is None or code == 0, f"{who} ended with {code}: {log}"
        late = time.monotonic() - self.begun > DEADLINE_S
        assert not late, f"{self.name} is not done after {DEADLINE_S} s, with rows={len(self.rows())}"

    def await_rows(self, count):
        while len(self.rows()) < count:
            list(map(self.check_not_failed, self.processes))
            time.sleep(0.02)

    def await_lease(self, role):
        """Waits until the role holds rows, so that its death affects some rows."""
        while True:
            self.check_not_failed(role)
            try:
                with urllib.request.urlopen(self.url + "/v1/inspect", timeout=5) as answer:
                    partitions = json.load(answer)["partitions"]
            except (urllib.error.URLError, OSError):
                partitions = []
            leases = [lease for partition in partitions for lease in partition["leases"]]
            if any(role in lease["holders"] for lease in leases):
                return

    def kill(self, who):
        process = self.processes.pop(who)
        process.send_signal(signal.SIGKILL)
        code = process.wait()
        assert code == -signal.SIGKILL, f"{who} had ended with {code} before it was killed"

    def await_end(self):
        while any(process.poll() is None for process in self.processes.values()):
            list(map(self.check_not_failed, self.processes))
            time.sleep(0.05)
        list(map(self.check_not_failed, self.processes))
        return time.monotonic() - self.begun

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


def undisturbed(world):
    world.begun = time.monotonic()
    list(map(world.start, ("run", *ROLES)))
    return world.await_end()


def disturbed(world):
    world.begun = time.monotonic()
    list(map(world.start, ("run", *ROLES)))
    for number, role in enumerate(ROLES, 1):
        world.await_rows(number * ROWS // 8)
        world.await_lease(role)
        world.kill(role)
        world.start(role)
    # The run dies alone, and the roles continue. The rest of the rows does not fit into the queue, so the run still
    # makes rows.
    world.await_rows(4 * ROWS // 8)
    world.kill("run")
    world.start("run")
    # All processes are killed, and then all are started again.
    world.await_rows(5 * ROWS // 8)
    list(map(world.kill, ("run", *ROLES)))
    list(map(world.start, ("run", *ROLES)))
    return world.await_end()


def check_columns(row):
    """Checks that the added columns fit the tokens of the same row: the values of `values`, and the number and range
    of the values of `ref_log_prob`.
    """
    tokens = len(row["response_ids"])
    assert row["values"] == [float(tokens - 1 - at) for at in range(tokens)], row
    assert len(row["ref_log_prob"]) == tokens, row
    assert all(-50 < value <= 0 for value in row["ref_log_prob"]), row


def unique_rows(rows):
    """Returns the contents of each row by prompt_uid and sample_index, and the number of repeated rows. Checks that
    repeated rows are equal.
    """
    seen, again = {}, 0
    for row in rows:
        check_columns(row)
        # The name of the group does not identify a row: it has the number of a dispatch, which differs after a restart.
        name = (row["prompt_uid"], row["sample_index"])
        words = {key: row[key] for key in COMPARED}
        again += name in seen
        earlier = seen.setdefault(name, words)
        assert earlier == words, f"row (prompt_uid, sample_index)={name}: expected {earlier}, found {words}"
    return seen, again


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(folder)
        worlds = [World(binary, folder, "undisturbed"), World(binary, folder, "disturbed")]
        try:
            seconds = [undisturbed(worlds[0]), disturbed(worlds[1])]
        finally:
            for world in worlds:
                world.stop()
        (quiet, repeated), (killed, again) = (unique_rows(world.rows()) for world in worlds)
    found = f"found rows={len(quiet)}, repeated={repeated}"
    assert len(quiet) == ROWS and repeated == 0, f"expected rows={ROWS}, repeated=0 without a fault: {found}"
    differ = [name for name in sorted(killed | quiet) if killed.get(name) != quiet.get(name)]
    assert not differ, f"{len(differ)} rows of the two runs differ, for example {differ[:8]}"
    # Rows are repeated only if the trainer dies between its training and its ack. It died twice.
    assert again <= 2 * BATCH_ROWS, f"expected at most {2 * BATCH_ROWS} repeated rows, found {again}"
    print(f"{ROWS} rows relayed in {seconds[0]:.0f} s, and in {seconds[1]:.0f} s with deaths ({again} rows came again)")


if __name__ == "__main__":
    main()
