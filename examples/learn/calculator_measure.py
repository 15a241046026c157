"""Measures a model on questions with torch alone: no server, no gateway, no agent. It reads the calls and
computes the right answers with separate code, so a fault of the rewards cannot make a wrong answer count as
right.
"""

from __future__ import annotations

import operator

import torch
from calculator import ASSISTANT, TOKENS, TURN_TOKENS_MAX, USER
from characters import END
from transformers import LlamaForCausalLM

WORDS = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def accuracy(model: LlamaForCausalLM, questions: list[str], *, seed: int = 1) -> float:
    """Returns the share of questions that the model answers right in two turns, at temperature 1."""
    draw = torch.Generator().manual_seed(seed)
    prompts = [[*_message(USER, question), TOKENS.index(ASSISTANT)] for question in questions]
    first = turn(model, prompts, draw)
    results = [_result(words) for words in first]
    called = [place for place, result in enumerate(results) if result is not None]
    second = turn(
        model,
        [
            [*prompts[place], *first[place], *_message(USER, str(results[place])), TOKENS.index(ASSISTANT)]
            for place in called
        ],
        draw,
    )
    answers = [_text(words) for words in first]
    for place, words in zip(called, second, strict=True):
        answers[place] = _text(words)
    right = 0
    for question, answer in zip(questions, answers, strict=True):
        a, word, b = question.split(" ")
        right += answer == f"{WORDS[word](int(a), int(b))}"
    return right / len(questions)


def turn(model: LlamaForCausalLM, prompts: list[list[int]], draw: torch.Generator) -> list[list[int]]:
    """Returns the sampled ids after each prompt, up to the end token or the limit of a turn."""
    if not prompts:
        return []
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    tokens = torch.zeros(len(prompts), int(lengths.max()) + TURN_TOKENS_MAX, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    going = torch.arange(len(prompts))
    for place in range(TURN_TOKENS_MAX):
        if not len(going):
            break
        # Attention is causal, so the tokens after a row's end do not change the row.
        ends = lengths[going] + place
        with torch.no_grad():
            logits = model(input_ids=tokens[going, : int(ends.max())], use_cache=False).logits
        last = logits[torch.arange(len(going)), ends - 1]
        chosen = torch.multinomial(last.softmax(-1), 1, generator=draw)[:, 0]
        tokens[going, ends] = chosen
        going = going[chosen != TOKENS.index(END)]
    sampled = [tokens[row, length:].tolist() for row, length in enumerate(lengths.tolist())]
    end = TOKENS.index(END)
    return [row[: row.index(end) + 1] if end in row else row[:TURN_TOKENS_MAX] for row in sampled]


def _message(mark: str, text: str) -> list[int]:
    return [TOKENS.index(mark), *map(TOKENS.index, text), TOKENS.index(END)]


def _text(ids: list[int]) -> str:
    return "".join(TOKENS[number] for number in ids).removesuffix(END)


def _result(ids: list[int]) -> int | None:
    """Returns the result of the call that a turn consists of, or `None` if the turn is not a call."""
    text = _text(ids)
    if ids[-1] != TOKENS.index(END) or not (text.startswith("calc(") and text.endswith(")")):
        return None
    inner = text[len("calc(") : -1]
    for sign, function in SIGNS.items():
        left, found, right = inner.partition(sign)
        if found and left.isdigit() and right.isdigit():
            return int(function(int(left), int(right)))
    return None
