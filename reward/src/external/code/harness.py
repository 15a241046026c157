"""Runs a candidate under one test; `code.rs` documents the forms.

The first line on standard output reports that the candidate begins. Without this line, the sandbox has failed, not the
candidate. Expected results never enter this process, except those inside assertions.
"""

import os
import sys

os.write(1, b"rolldock ready\n")

# Names that solutions expect. The builtins come last, because modules shadow some of them.
PRELUDE = """
from math import *
from itertools import *
from functools import *
from collections import *
from heapq import *
from bisect import *
from typing import *
import bisect, collections, functools, heapq, itertools, math, operator, re, string, sys
from builtins import *
"""


def load(path, name, prelude=""):
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(prelude, module.__dict__)
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def request():
    """Reads the request, empties input and sends output to stderr: a candidate cannot answer for the harness."""
    import json

    # Whole numbers may have more digits than Python converts by default.
    getattr(sys, "set_int_max_str_digits", lambda digits: None)(0)
    asked = json.loads(sys.stdin.buffer.read())
    answers = os.dup(1)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    return asked, answers


def say(answers, text):
    with open(answers, "wb") as file:
        file.write(text.encode("ascii"))
    sys.stdout.flush()
    # Threads that the candidate left running would delay an orderly exit.
    os._exit(0)


def argument(value):
    """JSON keys are texts: if all keys are whole numbers, they become numbers."""
    if not isinstance(value, dict):
        return value
    try:
        return {int(key): item for key, item in value.items()}
    except ValueError:
        return value


def plain(value):
    """Turns values of numpy into numbers and lists, and other values into their `repr`."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def call(path):
    asked, answers = request()
    module = load(path, "candidate", PRELUDE)
    name = asked["call"]
    solution = getattr(module, "Solution", None)
    holder = solution() if isinstance(solution, type) and hasattr(solution, name) else module
    import json

    result = getattr(holder, name)(*map(argument, asked["arguments"]))
    say(answers, json.dumps(result, default=plain))


def check(path):
    asked, answers = request()
    module = load(path, "candidate", PRELUDE)
    exec(compile(asked["tests"], "tests", "exec"), module.__dict__)
    say(answers, asked["seal"])


if __name__ == "__main__":
    form, path = sys.argv[1:3]
    sys.argv = [path]
    if form == "program":
        load(path, "__main__")
    elif form == "call":
        call(path)
    else:
        check(path)
