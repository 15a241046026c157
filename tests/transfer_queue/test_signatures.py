"""Compares the public names and signatures of `rolldock.transfer_queue` with those of TransferQueue's source.

The environment's `TRANSFER_QUEUE_SOURCE` names the folder of the package, which is parsed and not imported.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rolldock.transfer_queue as tq

SOURCE = Path(os.environ["TRANSFER_QUEUE_SOURCE"])
#: Methods that are absent or have other arguments, with the reason.
OTHER = {
    "TransferQueueClient.__init__": "ours takes a configuration, theirs addresses of ZeroMQ",
    "TransferQueueClient.initialize_storage_manager": "ours has no storage backends",
}
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def definitions() -> tuple[dict[str, Definition], dict[str, ast.ClassDef]]:
    """The functions and classes at the top of the package's modules."""
    functions: dict[str, Definition] = {}
    classes: dict[str, ast.ClassDef] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, Definition):
                functions.setdefault(node.name, node)
            elif isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, node)
    return functions, classes


FUNCTIONS, CLASSES = definitions()


def names() -> list[str]:
    """The strings of `__all__` of the package."""
    for node in ast.parse((SOURCE / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            constants = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
            return sorted(str(one) for one in constants)
    raise AssertionError("the package has no __all__")


def methods(name: str) -> Iterator[tuple[str, Definition]]:
    """The public methods of a class, including the methods of its bases in the package."""
    for base in CLASSES[name].bases:
        if ast.unparse(base) in CLASSES:
            yield from methods(ast.unparse(base))
    for node in CLASSES[name].body:
        if isinstance(node, Definition) and (node.name == "__init__" or not node.name.startswith("_")):
            yield node.name, node


def cases() -> list[tuple[str, Definition]]:
    found: dict[str, Definition] = {name: FUNCTIONS[name] for name in names() if name in FUNCTIONS}
    for name in names():
        if name in CLASSES:
            found.update({f"{name}.{method}": node for method, node in methods(name)})
    return sorted(found.items())


def parameters(node: Definition) -> list[tuple[str, str, Any]]:
    """Each parameter: its name, kind and default."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [inspect.Parameter.empty] * (len(positional) - len(given.defaults))
    defaults += [_value(one) for one in given.defaults]
    found = [
        (one.arg, "POSITIONAL_OR_KEYWORD", default) for one, default in zip(positional, defaults, strict=True)
    ]
    if given.vararg:
        found.append((given.vararg.arg, "VAR_POSITIONAL", inspect.Parameter.empty))
    for one, keyword_default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append((one.arg, "KEYWORD_ONLY", _value(keyword_default)))
    if given.kwarg:
        found.append((given.kwarg.arg, "VAR_KEYWORD", inspect.Parameter.empty))
    # A decorator gives its methods the socket that they use.
    return [one for one in found if one[0] != "socket"]


def _value(node: ast.expr | None) -> Any:
    if node is None:
        return inspect.Parameter.empty
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def test_all_public_names_are_there() -> None:
    assert set(names()) - set(tq.__all__) == set()
    assert len(names()) > 20


@pytest.mark.parametrize(("name", "theirs"), cases(), ids=[name for name, _ in cases()])
def test_the_signature_is_the_same(name: str, theirs: Definition) -> None:
    if name in OTHER:
        pytest.skip(OTHER[name])
    ours: Any = tq
    for part in name.split("."):
        ours = inspect.getattr_static(ours, part) if ours is not tq else getattr(tq, part)
    if isinstance(ours, property):
        assert any(ast.unparse(one) == "property" for one in theirs.decorator_list)
        return
    function = ours.__func__ if isinstance(ours, classmethod | staticmethod) else ours
    found = [
        (one.name, one.kind.name, one.default) for one in inspect.signature(function).parameters.values()
    ]
    assert _comparable(found) == _comparable(parameters(theirs))
    assert inspect.iscoroutinefunction(function) == isinstance(theirs, ast.AsyncFunctionDef)


def _comparable(found: list[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    # Python itself passes `self` and `cls`.
    return [one for one in found if one[0] not in ("self", "cls")]
