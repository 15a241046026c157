"""The model that reinforcement learning begins with: it knows the form of an answer, and is mostly wrong.

First the model learns to add from right answers. Then it learns wrong answers beside right ones, until about
a quarter of its answers are right. Such a model can improve by reward alone. A model whose first
training was stopped early does not improve, because its entropy collapses.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import torch
from arithmetic import Problem, ids_of, problems
from characters import END_ID, PAD_ID
from model import accuracy, logprobs_of, new_model, save
from transformers import LlamaForCausalLM

BATCH = 256
#: The first part ends when the mean probability of a right answer in a batch has reached this value.
RIGHT_PROBABILITY = 0.97
RIGHT_LEARNING_RATE = 2e-3
RIGHT_STEPS_MAX = 1000
#: The steps of the second part, and the share of its answers that are right.
WRONG_STEPS = 100
WRONG_LEARNING_RATE = 1e-3
RIGHT_SHARE = 0.25
#: How far wrong answers are off.
ERRORS = (-10, -2, -1, 1, 2, 10)


def warm_model(folder: Path) -> Path:
    """Returns the folder of the warm model. If the folder does not exist, the model is trained, which takes
    about two minutes.
    """
    if folder.exists():
        return folder
    train, held_out = problems()
    draw = random.Random(1)
    model = new_model(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RIGHT_LEARNING_RATE)
    train_until(
        RIGHT_PROBABILITY, RIGHT_STEPS_MAX, lambda: _step(model, optimizer, draw.sample(train, BATCH))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=WRONG_LEARNING_RATE)
    for _ in range(WRONG_STEPS):
        _step(model, optimizer, [_with_errors(problem, draw) for problem in draw.sample(train, BATCH)])
    sampled, greedy = accuracy(model, held_out), accuracy(model, held_out, temperature=0)
    print(f"warm-up: {WRONG_STEPS} steps with errors, to an accuracy of {sampled:.3f}, greedy {greedy:.3f}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    save(model, folder)
    return folder


def train_until(probability: float, steps_max: int, step: Callable[[], float]) -> None:
    """Repeats a step on right examples until the mean probability that the step returns reaches
    `probability`."""
    reached, steps = 0.0, 0
    while reached < probability:
        if steps == steps_max:
            raise RuntimeError(
                f"expected a probability of {probability} within {steps} steps, found {reached:.3f}"
            )
        reached = step()
        steps += 1
    print(f"warm-up: {steps} steps on right examples, to a probability of {reached:.2f}")


def _with_errors(problem: Problem, draw: random.Random) -> Problem:
    if draw.random() < RIGHT_SHARE:
        return problem
    return Problem(problem.prompt, str(problem.value + draw.choice(ERRORS)))


def _step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: list[Problem]) -> float:
    answers = [[*ids_of(problem.answer), END_ID] for problem in batch]
    return supervised_step(
        model,
        optimizer,
        [ids_of(problem.prompt) + answer for problem, answer in zip(batch, answers, strict=True)],
        [
            [False] * len(problem.prompt) + [True] * len(answer)
            for problem, answer in zip(batch, answers, strict=True)
        ],
    )


def supervised_step(
    model: LlamaForCausalLM,
    optimizer: torch.optim.Optimizer,
    rows: list[list[int]],
    marks: list[list[bool]],
) -> float:
    """Trains on the marked tokens of some rows of ids. Returns the mean probability of a row before the
    update. The probability of a row is the product over its marked tokens.
    """
    length = max(map(len, rows))
    tokens = torch.tensor([row + [PAD_ID] * (length - len(row)) for row in rows])
    mask = torch.tensor([row + [False] * (length - len(row)) for row in marks])[:, 1:]
    logprobs = logprobs_of(model, tokens)[0] * mask
    optimizer.zero_grad()
    (-logprobs.sum() / mask.sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(logprobs.detach().sum(-1).exp().mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm_model(Path("warm"))
