"""Samplers and the ready samples against models that look at every sample. Without a server."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tq_support import torch  # isort: skip

import rolldock.transfer_queue as tq
from rolldock.transfer_queue.controller import Controller
from rolldock.transfer_queue.partition import _READY_MAX, PartitionState
from rolldock.transfer_queue.ready import Indexes

PLACE = {"task_name": "t", "partition_id": "p"}


@pytest.mark.parametrize("seed", range(3))
def test_indexes_are_a_sorted_set(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four make many blocks, as a million samples do."""
    monkeypatch.setattr("rolldock.transfer_queue.ready._BLOCK_MAX", 4)
    random = np.random.default_rng(seed)
    truth = set(random.integers(0, 60, 20).tolist())
    indexes = Indexes(truth)
    for step in range(400):
        index = int(random.integers(0, 60))
        change = "add" if random.random() < (0.7 if step < 200 else 0.3) else "discard"
        getattr(indexes, change)(index)
        getattr(truth, change)(index)
        assert list(indexes) == sorted(truth)
        assert len(indexes) == len(truth)
        assert (index in indexes) == (index in truth)
    ordered = sorted(truth)
    for start, stop, stride in itertools.product([None, 0, 2, -3], [None, 1, 5, -1, 99], [None, 2, -1]):
        assert indexes[start:stop:stride] == ordered[start:stop:stride]
    assert [indexes[place] for place in range(-len(ordered), len(ordered))] == ordered * 2
    with pytest.raises(IndexError, match=f"of {len(ordered)} indexes"):
        indexes[len(ordered)]
    for index in ordered:
        indexes.discard(index)
    assert (list(indexes), len(indexes), indexes[:5]) == ([], 0, [])


FIELDS = ("x", "y", "z")
ASKED = [(task, fields) for task in "ab" for fields in (("x",), ("y", "x"), ("z",), ("x", "y", "z"), ())]


@pytest.mark.parametrize("seed", range(4))
def test_ready_samples_are_those_of_a_look_at_every_sample(seed: int) -> None:
    random = np.random.default_rng(seed)
    partition = PartitionState()
    has: dict[int, set[str]] = {}
    consumed: dict[str, set[int]] = {"a": set(), "b": set()}
    schema = {"dtype": torch.int64, "shape": (1,), "is_nested": False}
    for step in range(150):
        chosen = [index for index in has if random.random() < 0.2]
        task = str(random.choice(["a", "b"]))
        match random.integers(0, 8):
            case 0 | 1 | 2:
                partition.add(step, None)
                has[step] = set()
            case 3 | 4:
                names = [name for name in FIELDS if random.random() < 0.5]
                partition.produced(chosen, dict.fromkeys(names, schema))
                for index in chosen:
                    has[index].update(names)
            case 5:
                partition.consume(task, [*chosen, 10_000])
                consumed[task].update(chosen)
            case 6:
                for index in chosen[:1]:
                    partition.remove(index)
                    del has[index]
                    consumed = {name: of_task - {index} for name, of_task in consumed.items()}
            case _:
                if step % 10 == 0:
                    partition.reset(task)
                    consumed[task] = set()
        for name, fields in ASKED:
            expected = sorted(
                index for index in has if fields and has[index] >= set(fields) and index not in consumed[name]
            )
            assert list(partition.ready(fields, name)) == expected, (step, name, fields)
        for name in consumed:
            assert partition.has_consumed_all(name) == (bool(has) and consumed[name] == has.keys())
        assert partition.has_all(["x", "y"]) == (bool(has) and all({"x", "y"} <= one for one in has.values()))


def test_the_kept_sets_of_ready_samples_are_bounded() -> None:
    partition = PartitionState()
    partition.add(0, None)
    partition.produced([0], {"x": {"dtype": torch.int64, "shape": (1,), "is_nested": False}})
    for number in range(3 * _READY_MAX):
        assert list(partition.ready(["x"], f"task-{number}")) == [0]
    assert len(partition._ready) == _READY_MAX
    # The set of the first task was dropped, and is computed again.
    assert list(partition.ready(["x"], "task-0")) == [0]


def filled(sampler: tq.BaseSampler, samples: int) -> Controller:
    controller = Controller(sampler, {}, 0)
    # All calls are made by this thread.
    controller.__enter__()
    indexes = controller.insert("p", ["x"], samples).global_indexes
    schema = {"x": {"dtype": torch.int64, "shape": (1,), "is_nested": False}}
    controller.end_put("p", indexes, indexes, schema, [{}] * samples)
    return controller


class Counted(dict[int, Any]):
    """The shapes of a field. `looks` counts the iterations over all of them."""

    looks = 0

    def __iter__(self) -> Any:
        self.looks += 1
        return super().__iter__()


def test_later_calls_of_a_task_do_not_look_at_every_sample() -> None:
    controller = filled(tq.SequentialSampler(), 5_000)
    state = controller._partitions["p"].fields["x"]
    state.shapes = counted = Counted(state.shapes)
    for number in range(100):
        meta, ready, _ = controller.fetch("p", ["x"], 10, "t", None)
        assert meta.global_indexes == list(range(10 * number, 10 * number + 10))
        assert ready == 5_000 - 10 * number
    assert counted.looks == 1


def test_a_sampler_of_ones_own_gets_a_list_that_it_may_change() -> None:
    class Changing(tq.BaseSampler):
        def sample(
            self, ready_indexes: list[int], batch_size: int, *_: Any, **__: Any
        ) -> tuple[list[int], list[int]]:
            assert type(ready_indexes) is list
            ready_indexes.reverse()
            return ready_indexes[:batch_size], ready_indexes[:batch_size]

    controller = filled(Changing(), 4)
    assert controller.fetch("p", ["x"], 2, "t", None)[0].global_indexes == [3, 2]
    assert controller.fetch("p", ["x"], 2, "t", None)[0].global_indexes == [1, 0]


def test_an_index_is_never_used_again() -> None:
    controller = filled(tq.SequentialSampler(), 3)
    saved = controller.save()
    controller.clear("p", [1])
    controller.clear_partition("p")
    later = controller.insert("q", ["x"], 2).global_indexes
    assert later == [3, 4]
    controller.load(saved)
    assert controller.insert("q", ["x"], 1).global_indexes == [5]


def test_the_notes_of_an_answer_do_not_change() -> None:
    """An answer is pickled after the call, when another call may be under way."""
    controller = filled(tq.SequentialSampler(), 1)
    controller.find("p", ["k"], True)
    index = controller.find("p", ["k"], False)[0].global_indexes
    controller.note("p", index, [{"a": 1}], True)
    answer = controller.key_tags("p")["p"]["k"]
    controller.note("p", index, [{"b": 2}], True)
    controller.end_put("p", index, [9], {}, [{"c": 3}])
    assert answer == {"a": 1}
    assert controller.key_tags("p")["p"]["k"] == {"a": 1, "b": 2, "c": 3}


def test_a_type_that_changes_during_a_put_is_an_error() -> None:
    controller = filled(tq.SequentialSampler(), 2)
    with pytest.raises(ValueError, match=r"field=x: expected torch.int64 .* found torch.float32"):
        controller.end_put(
            "p", [1], [77], {"x": {"dtype": torch.float32, "shape": (1,), "is_nested": False}}, [{"n": 1}]
        )
    # The row belongs to its sample, so clearing the sample frees the row.
    assert controller.clear("p", [1]) == [77]


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (lambda _: b"", "expected a controller's state, found bytes=0"),
        (lambda saved: saved[: len(saved) // 2], "expected a controller's state"),
        (
            lambda _: filled(tq.RankAwareSampler(), 1).save(),
            "sampler=SequentialSampler, found RankAwareSampler",
        ),
        (lambda _: b"N.", "expected a controller's state of version=1, found None"),
        (lambda _: b"\x80\x04}.", "expected a controller's state of version=1, found None"),
    ],
)
def test_a_state_that_is_not_valid_changes_nothing(saved: Callable[[bytes], bytes], message: str) -> None:
    controller = filled(tq.SequentialSampler(), 3)
    state = saved(controller.save())
    for call in (controller.check, controller.load):
        with pytest.raises(ValueError, match=message):
            call(state)
    assert controller.fetch("p", ["x"], 3, "t", None)[0].global_indexes == [0, 1, 2]


# Samplers


def groups_of(ready: list[int], size: int) -> list[list[int]]:
    """The whole groups, found by trying every start. A group begins after the end of the group before."""
    found: list[list[int]] = []
    for start in sorted(ready):
        group = list(range(start, start + size))
        if set(group) <= set(ready) and (not found or start > found[-1][-1]):
            found.append(group)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_whole_groups_are_those_of_a_look_at_every_start(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(40):
        size, groups = int(random.integers(1, 5)), int(random.integers(1, 4))
        ready = np.flatnonzero(random.random(30) < 0.8).tolist()
        expected = groups_of(ready, size)[:groups]
        whole = list(itertools.chain.from_iterable(expected)) if len(expected) == groups else []
        for given in (ready, ready[::-1], Indexes(ready)):
            chosen, consumed = tq.GRPOGroupNSampler(size).sample(given, size * groups)
            assert chosen == consumed == whole


@pytest.mark.parametrize("seed", range(4))
def test_ranks_get_whole_groups_once_and_of_about_equal_length(seed: int) -> None:
    random = np.random.default_rng(seed)
    size, ranks, groups = 2, 3, 4
    samples = size * ranks * groups
    lengths = random.integers(1, 1000, samples).tolist()
    metas = {index: {"total_lengths": length} for index, length in enumerate(lengths)}
    partition = SimpleNamespace(get_custom_meta=lambda asked: {index: metas[index] for index in asked})
    sampler = tq.SeqlenBalancedSampler(size, ranks)
    shares = [
        sampler.sample(
            Indexes(range(samples)), size * groups, **PLACE, dp_rank=rank, batch_index=0, partition=partition
        )[0]
        for rank in range(ranks)
    ]
    assert sorted(itertools.chain.from_iterable(shares)) == list(range(samples))
    assert all(len(share) == size * groups for share in shares)
    assert all(
        share[place] + 1 == share[place + 1] for share in shares for place in range(0, len(share), size)
    )
    sums = [sum(lengths[index] for index in share) for share in shares]
    longest = max(lengths[start] + lengths[start + 1] for start in range(0, samples, size))
    assert max(sums) - min(sums) <= longest


@pytest.mark.parametrize("kind", [tq.RankAwareSampler, tq.GRPOGroupNSampler, tq.SeqlenBalancedSampler])
def test_a_rank_that_asks_again_gets_the_same_samples(kind: type[tq.BaseSampler]) -> None:
    sampler = kind()
    asked = {**PLACE, "dp_rank": 0, "batch_index": 3}
    assert not sampler.has_cached_result("p", "t", asked)
    first = sampler.sample([4, 5, 6], 2, **asked)
    assert first == ([4, 5], [4, 5])
    # The answer is the caller's own.
    first[0].clear()
    assert sampler.has_cached_result("p", "t", asked)
    assert not sampler.has_cached_result("p", "other", asked)
    assert not sampler.has_cached_result("p", "t", {**asked, "batch_index": 4})
    assert not sampler.has_cached_result("p", "t", None)
    assert sampler.sample([], 2, **asked)[0] == [4, 5]
    restored = kind()
    restored.load_checkpoint(sampler.save_checkpoint())
    assert restored.sample([], 2, **asked)[0] == [4, 5]
    sampler.clear_cache("p")
    assert sampler.sample([6, 7], 2, **asked)[0] == [6, 7]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tq.GRPOGroupNSampler(0), "n_samples_per_prompt must be positive, got 0"),
        (lambda: tq.SeqlenBalancedSampler(1, 0), "dp_size must be positive, got 0"),
        (lambda: tq.GRPOGroupNSampler(2).sample([0, 1], 3), r"batch_size \(3\) must be a multiple of"),
        (lambda: tq.RankAwareSampler().sample([0], 1, -1, 0, "t", "p"), "dp_rank -1 must be"),
    ],
)
def test_numbers_that_are_not_valid(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
