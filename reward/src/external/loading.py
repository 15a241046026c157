"""The beginning of every Python program of a run: loads the user's code, and ties the process to its parent.

A program follows this text in the same command, so the program uses the names of this text without an import.
"""

import asyncio
import importlib
import importlib.util
import json
import os
import signal
import sys
import traceback

REASON_CHARS_MAX = 500
PR_SET_PDEATHSIG = 1


def load(target):
    name, _, attributes = target.rpartition(":")
    if name.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(name))
        sys.path.insert(0, folder)
        # The prefix keeps a reward in math.py from shadowing the module math of the standard library.
        module_name = "reward_function_" + file[: -len(".py")]
        spec = importlib.util.spec_from_file_location(module_name, os.path.join(folder, file))
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(name)
    found = module
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return found


def load_function(target):
    function = load(target)
    if not callable(function):
        raise TypeError(f"{target} is a {type(function).__name__}; expected a function")
    return function


def clean(text):
    """Replaces lone surrogates, which some readers of JSON reject."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def reason(error):
    lines = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    text = lines[-1] if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return clean(text[:REASON_CHARS_MAX] + place)


def leave(error):
    """Exits immediately: threads that the user's code left running could delay an orderly exit for ever."""
    if isinstance(error.code, str):
        print(error.code, file=sys.stderr, flush=True)
    os._exit(error.code & 0xFF if isinstance(error.code, int) else error.code is not None)


async def finished(awaitable):
    return await awaitable


def die_with_parent():
    """Makes the kernel kill this worker with its parent: a busy worker does not notice the end of its input."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        # The parent died before the call above.
        os._exit(1)
