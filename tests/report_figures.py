"""Compares what TensorBoard and MLflow have of a run with its steps.jsonl and validation.jsonl.

    report_figures.py RUN MLFLOW_STORE
"""

import json
import pathlib
import sys

import mlflow
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

run, store = pathlib.Path(sys.argv[1]), sys.argv[2]


def lines(name):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def numbers(value, name=""):
    """All numbers in a line except those of servers and lists, by their names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if name or key not in ("format", "step", "life", "ended_unix_s", "servers"):
                yield from numbers(inner, f"{name}/{key}" if name else key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value


# What TensorBoard should have, by tag: the steps with their values.
expected = {}
for file, prefix in (("steps.jsonl", ""), ("validation.jsonl", "validation/")):
    for line in lines(file):
        for name, number in numbers(line):
            expected.setdefault(prefix + name, []).append((line["step"], line["ended_unix_s"], number))

events = EventAccumulator(str(run / "tensorboard"), size_guidance={SCALARS: 0}).Reload()
tags = set(events.Tags()["scalars"])
assert tags == set(expected), tags ^ set(expected)
for tag, wanted in expected.items():
    found = [(event.step, event.wall_time, event.value) for event in events.Scalars(tag)]
    assert len(found) == len(wanted), (tag, found, wanted)
    for (step, time, number), (wanted_step, wanted_time, wanted_number) in zip(found, wanted):
        assert (step, time) == (wanted_step, wanted_time), (tag, found, wanted)
        # Scalars are of single precision.
        assert abs(number - wanted_number) <= 1e-6 * max(1.0, abs(wanted_number)), (tag, found, wanted)
print(f"TensorBoard has {len(tags)} tags of {len(lines('steps.jsonl'))} steps")

client = mlflow.MlflowClient(tracking_uri=store)
[logged] = client.search_runs(["0"])
for part, name in (("fates", "accepted"), ("time", "step_s"), ("rewards", "mean"), ("tokens", "filtered")):
    metrics = client.get_metric_history(logged.info.run_id, f"{part}.{name}")
    history = sorted((metric.step, metric.value) for metric in metrics)
    wanted = [(line["step"], line[part][name]) for line in lines("steps.jsonl")]
    assert history == wanted, (part, name, history, wanted)
print(f"MLflow has {len(logged.data.metrics)} metrics")
