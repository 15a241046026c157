"""The task of the agent: arithmetic with a calculator, in two turns. A token is a character, or a mark of the
chat template.

    <user>81 minus 34<end>          the question
    <assistant>calc(81-34)<end>     turn 1: the model calls the calculator
    <user>47<end>                   what the agent got from the calculator
    <assistant>47<end>              turn 2: the model answers

There are 24,300 questions. Of these, 512 are held out: training never uses them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from characters import END, FIRST, write_tokenizer

USER, ASSISTANT = "<user>", "<assistant>"
#: The tokens in the order of their ids. There are as many as in the vocabulary of `arithmetic`.
TOKENS = (*FIRST, USER, ASSISTANT, *"0123456789", *"+-*() ", *"aceilmnpstu")
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
#: The name of each operation in questions, and its sign in calls.
OPERATIONS = {"plus": "+", "minus": "-", "times": "*"}
HELD_OUT = 512
#: The maximum number of tokens of a turn.
TURN_TOKENS_MAX = 16


@dataclass(frozen=True)
class Question:
    """A question with its right call and its right answer."""

    text: str
    call: str
    answer: str


def question_of(a: int, name: str, b: int) -> Question:
    """Returns the question about two numbers, by the name of an operation."""
    answer = {"plus": a + b, "minus": a - b, "times": a * b}[name]
    return Question(f"{a} {name} {b}", f"calc({a}{OPERATIONS[name]}{b})", str(answer))


def questions() -> tuple[list[Question], list[Question]]:
    """Returns the training questions and the held-out questions, in a fixed order."""
    numbers = range(10, 100)
    everything = [question_of(a, name, b) for a in numbers for name in OPERATIONS for b in numbers]
    random.Random(1).shuffle(everything)
    return everything[HELD_OUT:], everything[:HELD_OUT]


def reward_of(question: Question, said: str) -> float:
    """Returns 1 if the agent's last text is the answer, otherwise 0."""
    return float(said == question.answer)


def ids_of(text: str) -> list[int]:
    """Returns the token ids of a text without marks."""
    return [TOKENS.index(character) for character in text]


def message_ids(role: str, text: str) -> list[int]:
    """Returns the token ids of a message, as the chat template renders it."""
    return [TOKENS.index(f"<{role}>"), *ids_of(text), TOKENS.index(END)]


def text_of(ids: list[int]) -> str:
    """Returns the text of ids up to the end token. Marks are written as their names."""
    text = [TOKENS[number] for number in ids]
    return "".join(text[: text.index(END)] if END in text else text)


def write_calculator_tokenizer(folder: Path) -> None:
    """Writes the tokenizer with the chat template."""
    write_tokenizer(folder, TOKENS, chat_template=TEMPLATE, special=(*FIRST, USER, ASSISTANT))
