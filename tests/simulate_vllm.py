"""Compares `rolldock simulate` with real runs on two vLLM servers.

Both servers are calibrated at the same time, because they share the processors of a machine. A run of STEPS steps is
made with each of three settings. It filters no group, so no step begins with groups of another step. The recorded run
of the last setting is then simulated with all three settings. The median simulated time of the steps after the first
must be within ERROR_MAX of the median real time, and both times must give the settings the same order.

python3 tests/simulate_vllm.py BINARY FOLDER TOKENIZER ENDPOINT ENDPOINT
"""

import itertools
import json
import pathlib
import statistics
import subprocess
import sys

STEPS = 6  # The first step opens the connections, and is not counted.
ERROR_MAX = 0.2
SETTING = "rollout.max_concurrent_prompts"
VALUES = [1, 2, 6]
# A model with random weights draws all ids with about equal probability. One of MEAN_LENGTH ids is a stop token, so a
# response has MEAN_LENGTH tokens on average.
VOCABULARY, MEAN_LENGTH = 151_669, 64
RECIPE = """
[model]
name = "tiny-qwen3"
tokenizer = "{tokenizer}"
[data]
train = "{root}/data/arithmetic/train.jsonl"
max_prompt_length = 256
[fleet]
endpoints = {endpoints}
max_loads_per_server = 64
[rollout]
workers = 1
samples_per_prompt = 4
train_batch_size = 6
gen_batch_size = 6
max_response_length = 256
launch = "on_demand"
sampling = {{ stop_token_ids = {stops} }}
[filter]
enable = false
[reward]
python = "{root}/tests/trainer.py:compute_score"
[queue]
consumer = {{ task = "train", take_groups = 6, keep_last_steps = 0 }}
[policy]
mode = "off"
[run]
steps = {steps}
"""


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def calibrated(rolldock, folder, endpoints):
    """Calibrates both servers at the same time. Returns the file of the first server."""
    files = [folder / f"engine-{number}.toml" for number in range(len(endpoints))]
    arguments = ["--seconds", "40", "--max-batch", "32"]
    measuring = [
        subprocess.Popen([rolldock, "calibrate", endpoint, *arguments, "--output", file])
        for endpoint, file in zip(endpoints, files, strict=True)
    ]
    failed = [process.wait() for process in measuring]
    if any(failed):
        sys.exit(f"rolldock calibrate ended with {failed}")
    return files[0]


def real_times(rolldock, folder, recipe, value):
    out = folder / f"run-{value}"
    call(rolldock, "run", recipe, "--no-progress", "--out", out, "--set", f"{SETTING}={value}")
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return [step["time"]["step_s"] for step in steps[1:]]


def simulated_times(rolldock, folder, engine):
    """The time of each step after the first, for each setting."""
    values = ",".join(map(str, VALUES))
    run = folder / f"run-{VALUES[-1]}"
    totals = []
    for steps in range(1, STEPS + 1):
        said = call(
            *(rolldock, "simulate", "--replay", run, "--engine", engine, "--json", "--steps", str(steps)),
            *("--set", "fleet.simulated.max_num_seqs=64", "--sweep", f"{SETTING}={values}"),
        )
        totals.append([setting["times"]["total_s"] for setting in json.loads(said)])
    return [[after - before for before, after in itertools.pairwise(of_value)] for of_value in zip(*totals, strict=True)]


def main():
    rolldock, folder, tokenizer, *endpoints = sys.argv[1:]
    folder, root = pathlib.Path(folder), pathlib.Path(__file__).resolve().parent.parent
    recipe = folder / "recipe.toml"
    stops = list(range(0, VOCABULARY, MEAN_LENGTH))
    recipe.write_text(
        RECIPE.format(tokenizer=tokenizer, root=root, endpoints=json.dumps(endpoints), stops=stops, steps=STEPS)
    )
    engine = calibrated(rolldock, folder, endpoints)
    real = [real_times(rolldock, folder, recipe, value) for value in VALUES]
    simulated = simulated_times(rolldock, folder, engine)
    medians, guesses = ([statistics.median(times) for times in of_all] for of_all in (real, simulated))
    print(f"\n| {SETTING} | real step, s | fastest | slowest | simulated, s | simulated / real |\n|---|---|---|---|---|---|")
    for value, times, median, guess in zip(VALUES, real, medians, guesses, strict=True):
        print(f"| {value} | {median:.2f} | {min(times):.2f} | {max(times):.2f} | {guess:.2f} | {guess / median:.2f} |")
    far = [value for value, m, s in zip(VALUES, medians, guesses, strict=True) if abs(s / m - 1) > ERROR_MAX]
    order = [sorted(VALUES, key=lambda value: times[VALUES.index(value)]) for times in (medians, guesses)]
    assert not far, f"further than {ERROR_MAX} from the real step time: {SETTING} = {far}"
    assert order[0] == order[1], f"order of the settings: real {order[0]}, simulated {order[1]}"


if __name__ == "__main__":
    main()
