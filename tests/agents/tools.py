"""The task of the agents that the tests write with a client package: a tool, and what the agent does in each turn.

The parameters of the tool are enumerations and the tool is strict, so a model with random weights can call it.
"""

import os

TURNS = int(os.environ.get("AGENT_TURNS", "3"))
MODEL = os.environ["AGENT_MODEL"]
SYSTEM = "You are a calculator. Use the tool."
QUESTION = "What is one plus three?"
# The token limits of one call of a model with random weights, and of the model's last text.
CALL_TOKENS, TEXT_TOKENS = 96, 24
NAME, DESCRIPTION = "add", "adds two numbers"
PARAMETERS = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "enum": ["one", "two"]},
        "b": {"type": "string", "enum": ["three", "four"]},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4}


def add(a, b):
    return f"{a} and {b} are {NUMBERS[a] + NUMBERS[b]}."


def calls_tool(turn):
    """Whether the agent asks for a call in this turn. In the last turn it asks for text."""
    return turn < TURNS - 1
