"""Runs the programs of the guide."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from conftest import PATIENCE_S, ROOT

PAGE = (ROOT / "docs" / "src" / "python.md").read_text()
#: The programs of the page, by the name in the comment before each.
PROGRAMS = dict(re.findall(r"<!-- run: (\S+) -->\n\n```python\n(.*?)```", PAGE, re.DOTALL))


def test_each_program_of_the_page_is_run() -> None:
    assert len(PROGRAMS) == PAGE.count("```python") >= 5


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_the_guide(script: Callable[..., subprocess.Popen[str]], name: str) -> None:
    if "import torch" in PROGRAMS[name]:
        pytest.importorskip("torch")
    program = script(PROGRAMS[name])
    out, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0, out + err
