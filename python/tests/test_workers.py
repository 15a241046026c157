"""Workers of agents that run elsewhere: the program of the guide, as processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT, binary

from rolldock import Client

PAGE = (ROOT / "docs" / "src" / "gateway.md").read_text()
#: An agent of the standard library. The agent of a victim never ends.
AGENT = """
import json, os, sys, time, urllib.request
task = json.load(sys.stdin)
def chat(messages):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    call = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(call))["choices"][0]["message"]
messages = task["messages"]
for _ in range(2):
    messages += [chat(messages), {"role": "user", "content": "Are you sure?"}]
    if "VICTIM" in os.environ:
        open(os.environ["VICTIM"], "w").close()
        time.sleep(1000)
"""
RECIPE = f"""
[model]
name = "simulated"
tokenizer = "builtin"
[data]
train = "{ROOT}/data/arithmetic/train.jsonl"
[fleet]
endpoints = ["ENGINE"]
[rollout]
samples_per_prompt = 4
train_batch_size = 2
gen_batch_size = 2
max_response_length = 256
early_stop = "off"
[filter]
enable = false
[reward]
scorer = "math_dapo"
[policy]
mode = "off"
[queue]
listen = "127.0.0.1:0"
token = "secret"
capacity_rows = 64
[agent]
remote = true
lease = 5.0
# On a busy machine leases of live workers expire too, and each of them costs an attempt.
attempts_max = 100
[run]
steps = 1
"""


@contextmanager
def started(log: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which is killed at the end of the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            words,
            cwd=log.parent,
            env={**os.environ, **environment},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(what: str, look: Callable[[], str | bool | None]) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)
    return str(found)


def said(log: Path, pattern: str) -> str:
    def look() -> str | None:
        found = re.search(pattern, log.read_text())
        return found and found.group(1)

    try:
        return until(pattern, look)
    except AssertionError as never:
        raise AssertionError(log.read_text()) from never


@pytest.fixture
def worker(tmp_path: Path) -> Callable[[str], str]:
    """Writes the worker of the guide for the queue at a URL. Returns its file."""
    (program,) = re.findall(r"<!-- run: worker -->\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_agent.py").write_text(AGENT)

    def write(queue: str) -> str:
        text = program.replace("http://10.0.0.5:7070", queue).replace("python3", sys.executable)
        (tmp_path / "worker.py").write_text(text)
        return str(tmp_path / "worker.py")

    return write


def test_the_samples_of_a_killed_worker_come_back(worker: Callable[[str], str], tmp_path: Path) -> None:
    engine_log, run_log, victim = tmp_path / "engine.log", tmp_path / "run.log", tmp_path / "victim"
    with started(engine_log, binary(), "simengine", "--ports", "0", "--time-scale", "0.01"):
        engine = said(engine_log, r"(http://[\w.:]+) serves")
        (tmp_path / "recipe.toml").write_text(RECIPE.replace("ENGINE", engine))
        with started(run_log, binary(), "run", "recipe.toml", "--out", "run") as run:
            queue = said(run_log, r"serving the queue at (http://[\w.:]+)")
            program = worker(queue)
            with started(tmp_path / "dead.log", sys.executable, program, VICTIM=str(victim)) as dead:
                until("a call of the victim's agent", victim.exists)
                os.killpg(dead.pid, signal.SIGKILL)
            logs = [tmp_path / f"worker-{number}.log" for number in range(2)]
            client = Client(queue, token="secret", patience_s=PATIENCE_S)
            names: list[str] = []
            with (
                started(logs[0], sys.executable, program) as one,
                started(logs[1], sys.executable, program) as other,
            ):
                for _ in range(2):
                    batch = client.take(groups=1, wait_s=PATIENCE_S)
                    assert batch is not None
                    with batch:
                        names += list(batch["trajectory_uid"])
                codes = [process.wait(PATIENCE_S) for process in (one, other)]
            assert codes == [0, 0], [log.read_text() for log in logs]
            assert run.wait(PATIENCE_S) == 0, run_log.read_text()
    assert len(set(names)) == 8, names
    # On a busy machine other leases may expire too.
    assert any(name.endswith("-a2") for name in names), names
    assert "done: 1 step; 2 groups accepted" in run_log.read_text()
