"""Runs the programs of the guide: the Python page's programs alone, and the trainers with a run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT

from rolldock import Client

DOCS = ROOT / "docs" / "src"
PAGE = (DOCS / "python.md").read_text() + (DOCS / "transfer-queue-python.md").read_text()
TRAINERS_PAGE = (DOCS / "trainer.md").read_text()


def programs_of(page: str) -> dict[str, str]:
    """Returns the programs of a page, by the name in the comment before each."""
    return dict(re.findall(r"<!-- run: (\S+) -->\n\n```python\n(.*?)```", page, re.DOTALL))


PROGRAMS, TRAINERS = programs_of(PAGE), programs_of(TRAINERS_PAGE)
#: The arguments of Python that run a program in two processes, as torchrun does.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def test_each_program_of_the_pages_is_run() -> None:
    assert len(PROGRAMS) == PAGE.count("```python") >= 6
    quoted = TRAINERS_PAGE.count("<!-- copy: ")
    assert len(TRAINERS) == TRAINERS_PAGE.count("```python") - quoted == 3
    assert len(TRAINERS["plain"].splitlines()) - TRAINERS["plain"].count("\n\n") <= 15


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_the_guide(script: Callable[..., subprocess.Popen[str]], name: str) -> None:
    if "import torch" in PROGRAMS[name]:
        pytest.importorskip("torch")
    program = script(PROGRAMS[name])
    out, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0, out + err


@pytest.mark.parametrize("name", TRAINERS)
def test_the_trainers_of_the_guide_train_a_run(run: tuple[str, str], tmp_path: Path, name: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if name != "plain":
        pytest.importorskip("torch")
    if name == "verl":
        if importlib.util.find_spec("verl") is None:
            pytest.skip("verl is not installed")
        # verl imports Ray, but verl's batches and algorithms do not use it.
        stand_ins = str(Path(__file__).parent / "stand_ins")
        environment["PYTHONPATH"] = os.pathsep.join([environment.get("PYTHONPATH", ""), stand_ins])
    queue, policy = run
    # The run may still be starting.
    Client(queue, patience_s=PATIENCE_S).inspect()
    text = TRAINERS[name].replace("512", "4")
    file = tmp_path / "train.py"
    file.write_text(text.replace("http://127.0.0.1:7070", queue).replace("http://127.0.0.1:7401", policy))
    command = [sys.executable, *(TORCHRUN if name == "torchrun" else ()), str(file)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # In the mode `sync`, the run ends only when the version of every step was announced.
    until_said(tmp_path / "log", "done: 3 steps;")


def until_said(log: Path, words: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
