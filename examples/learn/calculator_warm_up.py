"""The model that the agent begins with. It knows the form of calls and answers, but is often wrong.

As in `warm_up`, the model first learns right conversations, and then a mix of wrong and right conversations.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from calculator import OPERATIONS, Question, message_ids, question_of, questions
from calculator_agent import CALL, computed
from calculator_measure import accuracy
from model import new_model, save
from transformers import LlamaForCausalLM
from warm_up import supervised_step, train_until

BATCH = 128
#: The probability of a conversation is that of all tokens that the model says in it. The first part ends when
#: the mean of this probability over a batch has reached this value.
RIGHT_PROBABILITY = 0.95
RIGHT_LEARNING_RATE = 2e-3
RIGHT_STEPS_MAX = 1500
#: The steps of the second part. `RIGHT_SHARE` is the share of its calls that are right, and also the share of
#: its answers that equal the result of the call, which may itself be wrong.
WRONG_STEPS = 80
WRONG_LEARNING_RATE = 1e-3
RIGHT_SHARE = 0.45
#: How far wrong numbers are off.
ERRORS = (-10, -2, -1, 1, 2, 10)


def warm_model(folder: Path) -> Path:
    """Returns the folder of the warm model. If the folder does not exist, the model is trained, which takes
    about a minute.
    """
    if folder.exists():
        return folder
    train, held_out = questions()
    draw = random.Random(1)
    model = new_model(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RIGHT_LEARNING_RATE)

    def right_step() -> float:
        batch = [conversation(one.text, one.call, one.answer) for one in draw.sample(train, BATCH)]
        return _step(model, optimizer, batch)

    train_until(RIGHT_PROBABILITY, RIGHT_STEPS_MAX, right_step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=WRONG_LEARNING_RATE)
    for _ in range(WRONG_STEPS):
        _step(model, optimizer, [with_errors(one, draw) for one in draw.sample(train, BATCH)])
    share = accuracy(model, [question.text for question in held_out])
    print(f"warm-up: {WRONG_STEPS} steps with errors, to an accuracy of {share:.3f}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    save(model, folder)
    return folder


def conversation(question: str, call: str, answer: str) -> tuple[list[int], list[bool]]:
    """Returns the ids of a conversation in two turns, and for each id whether the model says it. The
    calculator computes the call, even if the call is wrong.
    """
    parsed = CALL.fullmatch(call)
    if parsed is None:
        raise ValueError(f"expected a call, found {call}")
    ids: list[int] = []
    marks: list[bool] = []
    for role, text in (
        ("user", question),
        ("assistant", call),
        ("user", str(computed(*parsed.groups()))),
        ("assistant", answer),
    ):
        message = message_ids(role, text)
        ids += message
        # The template writes the role, and the model writes the rest.
        marks += [False] + [role == "assistant"] * (len(message) - 1)
    return ids, marks


def with_errors(question: Question, draw: random.Random) -> tuple[list[int], list[bool]]:
    """Returns a conversation. Its call is often that of a similar question (`_near`), and its answer is often
    not the calculator's result.
    """
    called = question if draw.random() < RIGHT_SHARE else _near(question, draw)
    answer = called.answer
    if draw.random() > RIGHT_SHARE:
        answer = str(int(answer) + draw.choice(ERRORS))
    return conversation(question.text, called.call, answer)


def _near(question: Question, draw: random.Random) -> Question:
    """Returns a question with another number, or with another operation."""
    a, name, b = question.text.split(" ")
    part, error = draw.randrange(3), draw.choice(ERRORS)
    if part == 0:
        return question_of(int(a) + error, name, int(b))
    if part == 1:
        return question_of(int(a), name, int(b) + error)
    return question_of(int(a), draw.choice([other for other in OPERATIONS if other != name]), int(b))


def _step(
    model: LlamaForCausalLM,
    optimizer: torch.optim.Optimizer,
    batch: list[tuple[list[int], list[bool]]],
) -> float:
    return supervised_step(model, optimizer, [ids for ids, _ in batch], [marks for _, marks in batch])


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm_model(Path(sys.argv[1]))
