"""Tests of the learning run that need neither a server nor a run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from arithmetic import TOKENS, VOCABULARY, Problem, ids_of, problems, text_of, write_data
from characters import END_ID
from learn import Plan, lines_of
from model import accuracy, answers, load, logprobs_of, new_model, save
from tokenizers import Tokenizer
from trainer import Rows, Settings, Trainer, loss_of, padded, shuffled

from rolldock.torch import MicroBatch

SETTINGS = Settings(0.2, 0.28, 5e-4, (0.9, 0.98), 5, 1.0, 3)


def test_the_problems_are_all_sums_and_none_is_in_both_parts() -> None:
    train, held_out = problems()
    assert len(held_out) == 512
    assert len({*train, *held_out}) == len(train) + len(held_out) == 8100
    for problem in (*train, *held_out):
        a, b = problem.prompt.removesuffix("=").split("+")
        assert int(a) + int(b) == int(problem.answer)


def test_the_tokenizer_reads_and_writes_as_the_trainer_does(tmp_path: Path) -> None:
    write_data(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    for problem in problems()[1]:
        for text in (problem.prompt, problem.answer):
            assert tokenizer.encode(text).ids == ids_of(text)
            assert tokenizer.decode([*ids_of(text), END_ID]) == text_of([*ids_of(text), END_ID, 5]) == text
    assert len(lines_of(tmp_path / "train.jsonl")) == 8100 - 512
    assert len(TOKENS) <= VOCABULARY


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    model = new_model(seed=3)
    save(model, tmp_path / "saved")
    save(model, tmp_path / "saved")
    again = load(tmp_path / "saved")
    tokens = torch.tensor([ids_of("12+34=")])
    assert torch.equal(model(input_ids=tokens).logits, again(input_ids=tokens).logits)
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]
    assert 500_000 < sum(parameter.numel() for parameter in model.parameters()) < 600_000


def test_padding_does_not_change_the_logprobs() -> None:
    model = new_model(seed=3)
    short, long = ids_of("12+34=46"), ids_of("98+34=132")
    tokens = torch.tensor([[*short, 0], long])
    together, _ = logprobs_of(model, tokens)
    alone, _ = logprobs_of(model, torch.tensor([short]))
    assert torch.allclose(together[0, : len(short) - 1], alone[0], atol=1e-6)


def test_an_untrained_model_answers_at_random() -> None:
    model = new_model(seed=3)
    held_out = problems()[1]
    assert accuracy(model, held_out) < 0.05
    some = held_out[:20]
    greedy = answers(model, some, temperature=0, seed=1)
    assert greedy == answers(model, some, temperature=0, seed=2)
    assert answers(model, some, temperature=1, seed=1) != answers(model, some, temperature=1, seed=2)
    always = [Problem(problem.prompt, text) for problem, text in zip(some, greedy, strict=True)]
    assert accuracy(model, always, temperature=0) == 1.0


def flat(sequences: list[tuple[list[int], list[int], float]]) -> MicroBatch:
    """A flat batch of prompts, responses and advantages, whose log-probability is -1 everywhere."""
    lengths = [len(prompt) + len(response) for prompt, response, _ in sequences]
    masks = [[False] * len(prompt) + [True] * len(response) for prompt, response, _ in sequences]
    return MicroBatch(
        input_ids=torch.tensor([token for prompt, response, _ in sequences for token in prompt + response]),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        loss_mask=torch.tensor([learns for row in masks for learns in row]),
        advantages=torch.zeros(sum(lengths)),
        rollout_logprobs=torch.full((sum(lengths),), -1.0),
        cu_seqlens=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        max_seqlen=max(lengths),
        extra={"advantage": torch.tensor([advantage for *_, advantage in sequences])},
        handles=np.arange(len(lengths), dtype=np.uint64),
        groups=["g"] * len(lengths),
        policy_versions=np.zeros(len(lengths), np.uint64),
    )


SEQUENCES = [
    (ids_of("12+34="), [*ids_of("46"), END_ID], 1.0),
    (ids_of("98+34="), [*ids_of("132"), END_ID], -0.5),
    (ids_of("11+11="), [*ids_of("9"), END_ID], 2.0),
]


def test_a_flat_batch_is_padded() -> None:
    rows = padded(flat(SEQUENCES))
    assert rows.tokens.tolist() == [
        [*prompt, *response, *[0] * (4 - len(response))] for prompt, response, _ in SEQUENCES
    ]
    assert rows.mask.sum(1).tolist() == [3, 4, 2]
    assert rows.mask[0].tolist() == [False] * 5 + [True] * 3 + [False]
    assert (rows.rollout_logprobs[rows.mask] == -1).all()


def test_the_loss_is_that_of_the_paper() -> None:
    # The expected loss is a sum over tokens in plain Python, with the logits of one sequence at a time.
    model = new_model(seed=3)
    loss, figures = loss_of(model, padded(flat(SEQUENCES)), SETTINGS)
    total, tokens, clipped = 0.0, 0, 0
    for prompt, response, advantage in SEQUENCES:
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0].double().tolist()
        for place, token in enumerate(response, len(prompt)):
            before = logits[place - 1]
            logprob = before[token] - math.log(sum(map(math.exp, before)))
            ratio = math.exp(logprob + 1.0)
            held = min(max(ratio, 0.8), 1.28)
            total -= min(ratio * advantage, held * advantage)
            clipped += ratio * advantage > held * advantage
            tokens += 1
    assert loss.item() == pytest.approx(total / tokens, abs=1e-5)
    assert figures["clipped"] == pytest.approx(clipped / tokens)
    assert 0 < figures["entropy"] <= math.log(VOCABULARY)


def test_shuffling_keeps_the_advantages_of_each_group() -> None:
    advantages = torch.arange(64.0)
    groups = ["a"] * 8 + ["b"] * 56
    found = shuffled(advantages, groups, torch.Generator().manual_seed(1))
    assert sorted(found[:8].tolist()) == advantages[:8].tolist()
    assert sorted(found[8:].tolist()) == advantages[8:].tolist()
    assert not torch.equal(found, advantages)
    again = shuffled(advantages, groups, torch.Generator().manual_seed(1))
    assert torch.equal(found, again)


def test_a_trainer_that_was_killed_goes_on_as_if_it_were_not(tmp_path: Path) -> None:
    save(new_model(seed=3), tmp_path / "warm")
    rows = padded(flat(SEQUENCES * 2))
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    whole = Trainer(folders[0], SETTINGS, tmp_path / "warm", seed=1)
    for _ in range(6):
        whole.train(rows, whole.draw())
    for _ in range(6):
        # Each of these trainers trains one step, and the next one continues from its checkpoint.
        life = Trainer(folders[1], SETTINGS, tmp_path / "warm", seed=1)
        life.train(rows, life.draw())
        life.save({"step": life.version})
    assert life.version == whole.version == 6
    for ours, theirs in zip(life.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert Trainer(folders[1], SETTINGS, tmp_path / "warm", seed=1).taken == {"step": 6}
    kept = sorted(folder.name for folder in (folders[1] / "weights").iterdir())
    assert kept == ["step-3", "step-4", "step-5", "step-6"]


def test_training_makes_rewarded_answers_more_likely() -> None:
    rows = padded(flat([SEQUENCES[0], (*SEQUENCES[1][:2], -1.0)]))
    model = new_model(seed=3)
    on_policy = Rows(rows.tokens, rows.mask, logprobs_of(model, rows.tokens)[0].detach(), rows.advantages)
    loss, figures = loss_of(model, on_policy, SETTINGS)
    assert figures["clipped"] == 0
    assert figures["logprob_difference_max"] < 1e-5
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    change = ((logprobs_of(model, rows.tokens)[0] - on_policy.rollout_logprobs) * rows.mask).sum(1)
    assert change[0] > 0 > change[1]


def test_the_lines_of_a_log_that_is_being_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert lines_of(log) == []
    log.write_text(json.dumps({"step": 1}) + "\n" + '{"step"')
    assert lines_of(log) == [{"step": 1}]


def test_the_runs_have_names_of_their_own() -> None:
    plans = [Plan("sync", 1, 9), Plan("sync", 2, 9), Plan("fully_async", 1, 9)]
    plans += [replace(plans[0], shuffle_rewards=True), replace(plans[0], kill=True)]
    assert len({plan.name for plan in plans}) == 5
