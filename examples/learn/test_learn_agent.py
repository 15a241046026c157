"""Tests of the agent's learning run that need neither a server nor a gateway."""

from __future__ import annotations

import json
import math
import random
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import calculator_measure
import numpy as np
import pytest
import torch
from calculator import (
    TEMPLATE,
    TOKENS,
    Question,
    ids_of,
    message_ids,
    question_of,
    questions,
    reward_of,
    text_of,
    write_calculator_tokenizer,
)
from calculator_agent import answer_of
from calculator_warm_up import conversation, with_errors
from characters import END, END_ID, FIRST, write_tokenizer
from learn_agent import GROUPS, SAMPLES, SETTINGS, failure_of, rewards_in_random_order, rows_of
from model import logprobs_of, new_model
from trainer import Rows, loss_of
from transformers import AutoTokenizer

from rolldock.torch import MicroBatch

ASSISTANT_ID = TOKENS.index("<assistant>")
QUESTION = question_of(81, "minus", 34)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_calculator_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_the_questions_are_all_and_none_is_in_both_parts() -> None:
    train, held_out = questions()
    assert len(held_out) == 512
    assert len({*train, *held_out}) == len(train) + len(held_out) == 24_300
    signs = {"plus": "+", "minus": "-", "times": "*"}
    for question in (*train[:500], *held_out):
        a, name, b = question.text.split()
        formula = f"{a}{signs[name]}{b}"
        assert question.call == f"calc({formula})"
        assert question.answer == str(eval(formula))


def test_a_tokenizer_reads_and_writes_every_text_of_the_task(tokenizer: Any) -> None:
    assert len(tokenizer) == len(set(TOKENS)) == 32
    for question in questions()[1]:
        for text in (question.text, question.call, question.answer):
            assert tokenizer.encode(text, add_special_tokens=False) == ids_of(text)
            assert tokenizer.decode(ids_of(text)) == text_of([*ids_of(text), END_ID, 5]) == text


def test_a_tokenizer_begins_with_the_tokens_that_trainers_know(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the tokens"):
        write_tokenizer(tmp_path, "abc")
    write_tokenizer(tmp_path, [*FIRST, "a"])
    assert "chat_template" not in json.loads((tmp_path / "tokenizer_config.json").read_text())


def test_the_template_of_each_prompt_continues_what_was_said_before(tokenizer: Any) -> None:
    def rendered(*messages: tuple[str, str], prompt: bool) -> list[int]:
        chat = [{"role": role, "content": text} for role, text in messages]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    user, call = ("user", "81 minus 34"), ("assistant", "calc(81-34)")
    first = rendered(user, prompt=True)
    assert first == [*message_ids(*user), ASSISTANT_ID]
    sampled = [*ids_of("calc(81-34)"), END_ID]
    second = rendered(user, call, ("user", "47"), prompt=True)
    # The next message and the next mark follow the sampled tokens.
    assert second == [*first, *sampled, *message_ids("user", "47"), ASSISTANT_ID]
    whole = rendered(user, call, ("user", "47"), ("assistant", "47"), prompt=False)
    assert whole == conversation("81 minus 34", "calc(81-34)", "47")[0]
    assert TEMPLATE.count(END) == 1


def said_in(ids: list[int], marks: list[bool]) -> str:
    return "".join(TOKENS[number] for number, marked in zip(ids, marks, strict=True) if marked)


def test_a_conversation_marks_what_the_model_says() -> None:
    ids, marks = conversation("81 minus 34", "calc(81-34)", "48")
    said = said_in(ids, marks)
    assert said == "calc(81-34)<end>48<end>"
    assert text_of(ids[ids.index(END_ID) + 1 :]) == "<assistant>calc(81-34)"
    with pytest.raises(ValueError, match="expected a call"):
        conversation("81 minus 34", "calc(81)", "48")


def test_conversations_with_errors_are_right_about_a_quarter_of_the_time() -> None:
    draw = random.Random(1)
    counts: Counter[tuple[bool, bool]] = Counter()
    for question in draw.sample(questions()[0], 4000):
        ids, marks = with_errors(question, draw)
        said = said_in(ids, marks)
        call, answer, _ = said.split(END)
        result = str(eval(call.removeprefix("calc")))
        counts[call == question.call, answer == result] += 1
    right = {
        "call": counts[True, True] + counts[True, False],
        "answer": counts[True, True] + counts[False, True],
    }
    assert all(0.3 < count / 4000 < 0.6 for count in right.values()), right
    assert 0.15 < counts[True, True] / 4000 < 0.3


class Scripted(BaseHTTPRequestHandler):
    """An OpenAI server that answers with the texts of a list, and keeps the requests."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, body["messages"]))  # type: ignore[attr-defined]
        text = self.server.texts.pop(0)  # type: ignore[attr-defined]
        answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *_values: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        server.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("texts", "said", "results"),
    [
        (["calc(81-34)", "47"], "47", ["47"]),
        (["calc(34-81)", "7"], "7", ["-47"]),
        (["calc(12*34)", "calc(12*34)"], "calc(12*34)", ["408"]),
        (["47"], "47", []),
        (["calc(81-34", "x"], "calc(81-34", []),
        ([None], "", []),
    ],
)
def test_the_agent_computes_the_calls_that_it_finds_in_the_text(
    server: Any, texts: list[str | None], said: str, results: list[str]
) -> None:
    server.texts = list(texts)
    base_url = f"http://127.0.0.1:{server.server_port}/t/word/v1"
    assert answer_of(base_url, "81 minus 34") == said
    paths = {path for path, _ in server.asked}
    assert paths == {"/t/word/v1/chat/completions"}
    assert len(server.asked) == 1 + len(results)
    users = [message["content"] for message in server.asked[-1][1] if message["role"] == "user"]
    assert users == ["81 minus 34", *results]


def test_the_reward_wants_the_whole_answer() -> None:
    said = ["47", "-47", "47 ", "4", "", "calc(81-34)", "47<user>"]
    assert [reward_of(QUESTION, text) for text in said] == [1, 0, 0, 0, 0, 0, 0]


def test_shuffled_rewards_stay_in_their_group() -> None:
    rewards = [float(place < SAMPLES // 2 or place >= 2 * SAMPLES) for place in range(3 * SAMPLES)]
    found = rewards_in_random_order(rewards, random.Random(1))
    groups = [found[start : start + SAMPLES] for start in range(0, len(found), SAMPLES)]
    assert [sum(group) for group in groups] == [SAMPLES / 2, 0, SAMPLES]
    assert groups[0] != rewards[:SAMPLES]


def says(monkeypatch: pytest.MonkeyPatch, words: list[list[str]]) -> None:
    """Replaces the model by given texts, one list for each turn."""
    turns = iter(words)

    def turn(_model: object, prompts: list[list[int]], _draw: object) -> list[list[int]]:
        texts = next(turns)
        assert len(texts) == len(prompts)
        return [[*ids_of(text), END_ID] for text in texts]

    monkeypatch.setattr(calculator_measure, "turn", turn)


def test_the_measurement_counts_right_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model(seed=3)
    asked = ["81 minus 34", "12 plus 34", "12 times 34", "10 minus 99", "11 plus 11"]
    says(
        monkeypatch,
        [["calc(81-34)", "calc(12+35)", "calc(12*34)", "calc(10-99)", "22"], ["47", "47", "40", "-89"]],
    )
    assert calculator_measure.accuracy(model, asked) == 3 / 5


def test_the_measurement_agrees_with_agent_and_reward(monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    draw = random.Random(2)
    base_url = f"http://127.0.0.1:{server.server_port}/v1"
    for question in draw.sample(questions()[1], 40):
        ids, marks = with_errors(question, draw)
        said = said_in(ids, marks).split(END)[:2]
        server.texts = list(said)
        reward = reward_of(question, answer_of(base_url, question.text))
        says(monkeypatch, [[said[0]], [said[1]]])
        assert calculator_measure.accuracy(new_model(seed=3), [question.text]) == reward


def test_a_turn_is_sampled_from_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model(seed=3)
    with torch.no_grad():
        # Random weights make all tokens about equally likely.
        model.lm_head.weight *= 8
    prompts = [[*message_ids("user", text), ASSISTANT_ID] for text in ("11 plus 22", "11 minus 22")]
    draw = torch.Generator().manual_seed(1)
    both = calculator_measure.turn(model, prompts * 4, draw)
    assert all(row[-1] == END_ID or len(row) == 16 for row in both)
    monkeypatch.setattr(calculator_measure, "TURN_TOKENS_MAX", 1)
    # The second prompt is longer. It must not change the answers to the first prompt.
    counts = Counter(row[0] for row in calculator_measure.turn(model, prompts * 500, draw)[::2])
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(prompts[:1])).logits[0, -1].softmax(-1).tolist()
    assert max(expected) > 0.2
    assert [counts[token] / 500 for token in range(32)] == pytest.approx(expected, abs=0.05)


def batch_of(said: list[list[tuple[list[int], bool]]], rewards: list[float], version: int) -> MicroBatch:
    """A flat batch of conversations, given as parts that the model said or did not say."""
    rows = [[(number, marked) for part, marked in parts for number in part] for parts in said]
    lengths = [len(row) for row in rows]
    advantages = torch.tensor(rewards) - 0.5
    return MicroBatch(
        input_ids=torch.tensor([number for row in rows for number, _ in row]),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        loss_mask=torch.tensor([marked for row in rows for _, marked in row]),
        advantages=torch.zeros(sum(lengths)),
        rollout_logprobs=torch.full((sum(lengths),), -1.0),
        cu_seqlens=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        max_seqlen=max(lengths),
        extra={"advantage": advantages, "reward": torch.tensor(rewards)},
        handles=np.arange(len(lengths), dtype=np.uint64),
        groups=["g"] * len(lengths),
        policy_versions=np.full(len(lengths), version, np.uint64),
    )


def two_turns(question: Question) -> list[tuple[list[int], bool]]:
    return [
        ([*message_ids("user", question.text), ASSISTANT_ID], False),
        ([*ids_of(question.call), END_ID], True),
        ([*message_ids("user", question.answer), ASSISTANT_ID], False),
        ([*ids_of(question.answer), END_ID], True),
    ]


def test_a_batch_has_one_row_for_each_agent_and_one_version() -> None:
    said = [two_turns(question) for question in questions()[0][: GROUPS * SAMPLES]]
    batch = batch_of(said, [1.0, 0.5] * (len(said) // 2), version=7)
    rows = rows_of(batch, 7)
    # An advantage of 0 teaches nothing.
    assert len(rows.tokens) == len(said) // 2
    assert rows.mask.sum() == sum(len(part) for parts in said[::2] for part, marked in parts if marked)
    with pytest.raises(ValueError, match="of version 8"):
        rows_of(batch, 8)
    with pytest.raises(ValueError, match="a row for each"):
        rows_of(batch_of(said[:9], [1.0] * 9, version=7), 7)


def test_only_sampled_tokens_have_a_gradient() -> None:
    said = [two_turns(question) for question in questions()[0][: GROUPS * SAMPLES]]
    rows = rows_of(batch_of(said, [1.0, 0.0] * (len(said) // 2), version=0), 0)
    # At each position, the logits give the next token half of the probability.
    logits = torch.zeros(*rows.tokens[:, 1:].shape, len(TOKENS))
    logits.scatter_(2, rows.tokens[:, 1:, None], math.log(len(TOKENS) - 1)).requires_grad_()

    def model(input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        assert torch.equal(input_ids, rows.tokens[:, :-1])
        assert not use_cache
        return SimpleNamespace(logits=logits)

    sampled = logprobs_of(model, rows.tokens)[0].detach()
    assert torch.allclose(sampled, torch.tensor(0.5).log())
    loss, _ = loss_of(model, Rows(rows.tokens, rows.mask, sampled, rows.advantages), SETTINGS)
    loss.backward()
    assert logits.grad is not None
    learned = logits.grad.abs().sum(-1) > 0
    assert learned.sum() == sum(len(part) for parts in said for part, marked in parts if marked)
    for ids, places, parts in zip(rows.tokens.tolist(), learned.tolist(), said, strict=True):
        marks = [marked for part, marked in parts for _ in part]
        assert ids[: len(marks)] == [number for part, _ in parts for number in part]
        # The logits at a position predict the next token.
        assert places == [*marks[1:], *[False] * (len(ids) - len(marks))]


def test_a_run_that_learns_nothing_fails_and_a_control_that_learns_fails() -> None:
    run = {"seed": 1, "shuffle_rewards": False, "initial": 0.2, "final": 0.7}
    control = run | {"shuffle_rewards": True, "final": 0.2}
    assert failure_of(run, 0.6) is None
    assert failure_of(control, 0.6) is None
    assert "at least" in (failure_of(run | {"final": 0.5}, 0.6) or "")
    assert "at most" in (failure_of(control | {"final": 0.4}, 0.6) or "")
    assert "begin below" in (failure_of(run | {"initial": 0.3}, 0.6) or "")
