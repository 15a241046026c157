"""Builds the wheel with maturin: the package with its extension module, the `rolldock` binary, and the
recipes.

`pip wheel ./python --no-deps` and `pip install ./python` use it. The environment can choose:

- `ROLLDOCK_WHEEL_PROFILE`: `dev` compiles quickly, for tests; a wheel is optimised by default.
- `ROLLDOCK_BINARY`: a `rolldock` binary that is packed instead of a new one.
- `CARGO_TARGET_DIR`: the folder of build outputs; `target` of the repository by default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin
from maturin import get_requires_for_build_editable, get_requires_for_build_wheel

__all__ = [
    "build_editable",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
#: The folder that `pyproject.toml` names as `data`: `scripts` goes to `bin`, `data` to the prefix.
DATA = ROOT / "target" / "wheel.data"
#: What the wheel has in `share/rolldock`, where the binary looks for recipes. The data have the paths that
#: the recipes name.
SHARED = ("recipes", "data/arithmetic")


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    DATA.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Any = None) -> str:
    DATA.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    prepare()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    prepare()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def prepare() -> None:
    """Builds the binary, and fills the folder that maturin packs."""
    is_dev = os.environ.get("ROLLDOCK_WHEEL_PROFILE") == "dev"
    target = Path(os.environ.setdefault("CARGO_TARGET_DIR", str(ROOT / "target")))
    os.environ["MATURIN_PEP517_ARGS"] = f"--locked --profile {'dev' if is_dev else 'release'}"
    shutil.rmtree(DATA, ignore_errors=True)
    for shared in SHARED:
        shutil.copytree(ROOT / shared, DATA / "data" / "share" / "rolldock" / shared)
    (DATA / "scripts").mkdir()
    shutil.copy(binary(target, "dev" if is_dev else "dist"), DATA / "scripts" / "rolldock")


def binary(target: Path, profile: str) -> Path:
    """Returns the binary that the environment names, or builds one."""
    if built := os.environ.get("ROLLDOCK_BINARY"):
        return Path(built)
    subprocess.run(
        ["cargo", "build", "--locked", "--profile", profile, "--bin", "rolldock"], cwd=ROOT, check=True
    )
    return target / ("debug" if profile == "dev" else profile) / "rolldock"
