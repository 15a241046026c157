"""The task: sums of two numbers of two digits. `12+34=` is answered by `46` and the end token.

A token is a character. There are 8,100 problems. Of these, 512 are held out: training never uses them.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from characters import END_ID, FIRST, UNKNOWN, write_tokenizer

#: The tokens in the order of their ids. The vocabulary of the model has 32 tokens. Only these 15 are used.
TOKENS = (*FIRST, *"0123456789+=")
VOCABULARY = 32
#: The number of tokens of a prompt, and the maximum number of tokens of an answer.
PROMPT_LENGTH, ANSWER_LENGTH_MAX = 6, 6
HELD_OUT = 512


@dataclass(frozen=True)
class Problem:
    """A prompt and its right answer."""

    prompt: str
    answer: str

    @property
    def value(self) -> int:
        """The right answer as a number."""
        return int(self.answer)


def ids_of(text: str) -> list[int]:
    """Returns the token ids of a text of digits, `+` and `=`."""
    return [TOKENS.index(character) for character in text]


def text_of(ids: list[int]) -> str:
    """Returns the text up to the end token. A token that is not a character is written as its name."""
    ids = ids[: ids.index(END_ID)] if END_ID in ids else ids
    return "".join(TOKENS[number] if number < len(TOKENS) else UNKNOWN for number in ids)


def problems() -> tuple[list[Problem], list[Problem]]:
    """Returns the training problems and the held-out problems, in a fixed order."""
    everything = [Problem(f"{a}+{b}=", str(a + b)) for a in range(10, 100) for b in range(10, 100)]
    random.Random(1).shuffle(everything)
    return everything[HELD_OUT:], everything[:HELD_OUT]


def write_data(folder: Path) -> None:
    """Writes `train.jsonl`, `held_out.jsonl` and the folder `tokenizer`."""
    for name, rows in zip(("train", "held_out"), problems(), strict=True):
        lines = (json.dumps({"prompt": row.prompt, "answer": row.answer}) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    write_tokenizer(folder / "tokenizer", TOKENS)
