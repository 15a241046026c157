"""Raises an error that names absent packages, before another module imports them."""

from __future__ import annotations

from importlib.util import find_spec

_absent = [name for name in ("numpy", "torch", "tensordict") if find_spec(name) is None]
if _absent:
    raise ImportError(f"rolldock.verl needs {', '.join(_absent)}, which verl needs too: install verl")
