"""An agent with a calculator. It knows only the base URL of an OpenAI server, and nothing about tokens,
rewards or training.

    python calculator_agent.py http://127.0.0.1:8000/v1 "81 minus 34"

The model calls the calculator as text, `calc(81-34)`. The agent finds the call in the text, computes it, and
sends the result as the next message. Text without a call is the agent's answer.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from typing import Any

TURNS_MAX = 2
TOKENS_MAX = 16
PATIENCE_S = 120.0
CALL = re.compile(r"calc\(([0-9]+)([-+*])([0-9]+)\)")


def answer_of(base_url: str, question: str) -> str:
    """Returns the agent's answer to a question."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    text = ""
    for _ in range(TURNS_MAX):
        message = reply_to(base_url, messages)
        text = message["content"] or ""
        call = CALL.fullmatch(text)
        if call is None:
            break
        messages += [message, {"role": "user", "content": str(computed(*call.groups()))}]
    return text


def computed(a: str, sign: str, b: str) -> int:
    """Returns the result of a call."""
    left, right = int(a), int(b)
    if sign == "+":
        return left + right
    return left - right if sign == "-" else left * right


def reply_to(base_url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the model's next message."""
    body = {"model": "any", "messages": messages, "max_tokens": TOKENS_MAX}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


if __name__ == "__main__":
    print(answer_of(*sys.argv[1:]))
