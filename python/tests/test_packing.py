"""Flat batches and the division of rows. Skipped where torch is not installed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from rows import declare, made

from rolldock import Batch, Client

torch = pytest.importorskip("torch")

from rolldock.torch import BadRow, Fields, Flops, LoaderError, MicroBatch  # noqa: E402
from rolldock.torch.balance import balanced, costs_of, fewest, micro_batches  # noqa: E402
from rolldock.torch.packing import Labels, lengths_of, pack  # noqa: E402


def taken(queue: Client, data: dict[str, Any]) -> Batch:
    declare(queue, "p") if set(data) == set(made(1)) else None
    queue.put("p", "g", data, policy_version=3)
    batch = queue.take("p", groups=1)
    assert batch is not None
    return batch


def packed(batch: Batch, places: list[int], fields: Fields | None = None) -> MicroBatch:
    chosen = np.array(places, dtype=np.int64)
    return pack(batch, chosen, Labels.of(batch).at(chosen), fields or Fields())


def truth(data: dict[str, Any], places: list[int]) -> dict[str, list[Any]]:
    """The flat batch, token by token."""
    flat: dict[str, list[Any]] = {
        name: [] for name in ("input_ids", "position_ids", "loss_mask", "advantages", "rollout_logprobs")
    }
    flat["cu_seqlens"] = [0]
    for row in places:
        prompt, response = list(data["prompt_ids"][row]), list(data["response_ids"][row])
        for position, token in enumerate(prompt + response):
            place = position - len(prompt)
            flat["input_ids"].append(int(token))
            flat["position_ids"].append(position)
            flat["loss_mask"].append(place >= 0 and bool(data["response_mask"][row][place]))
            flat["advantages"].append(float(data["advantage"][row]) if place >= 0 else 0.0)
            flat["rollout_logprobs"].append(
                float(data["rollout_logprobs"][row][place]) if place >= 0 else 0.0
            )
        flat["cu_seqlens"].append(len(flat["input_ids"]))
    return flat


@pytest.mark.parametrize("seed", range(6))
def test_flat_batches_are_those_of_a_loop_over_tokens(queue: Client, seed: int) -> None:
    data = made(17, seed=seed, length_end=2 + 5 * seed)
    batch = taken(queue, data)
    places = np.random.default_rng(seed).permutation(17)[: 1 + 3 * seed].tolist()
    micro = packed(batch, places)
    for name, values in truth(data, places).items():
        assert getattr(micro, name).tolist() == values, name
    assert micro.max_seqlen == max(np.diff(micro.cu_seqlens.tolist()))
    assert (micro.rows, micro.tokens) == (len(places), len(micro.input_ids))


def test_the_types_of_a_flat_batch_are_those_that_models_want(queue: Client) -> None:
    batch = taken(queue, made(3))
    micro = packed(batch, [0, 1, 2])
    dtypes = {name: getattr(micro, name).dtype for name in ("input_ids", "position_ids", "loss_mask")}
    assert dtypes == {"input_ids": torch.int64, "position_ids": torch.int64, "loss_mask": torch.bool}
    assert micro.rollout_logprobs is not None
    assert micro.cu_seqlens.dtype == torch.int32
    assert micro.advantages.dtype == micro.rollout_logprobs.dtype == torch.float32
    assert micro.policy_versions.tolist() == [3, 3, 3]
    assert micro.groups == ["g"] * 3
    assert micro.handles.tolist() == batch.handles.tolist()


def test_rows_in_several_pieces_are_packed_together(queue: Client) -> None:
    data = [made(3), made(4, first=3)]
    declare(queue, "p")
    for group, rows in enumerate(data):
        queue.put("p", str(group), rows)
    batch = queue.take("p", groups=2)
    assert batch is not None
    both = {name: [*data[0][name], *data[1][name]] for name in data[0]}
    assert packed(batch, [6, 0, 3]).input_ids.tolist() == truth(both, [6, 0, 3])["input_ids"]


def test_advantages_for_each_token_are_kept(queue: Client) -> None:
    data = made(5)
    data["gae"] = [np.arange(len(response), dtype=np.float32) + 1 for response in data["response_ids"]]
    micro = packed(taken(queue, data), [1, 4], Fields(advantages="gae"))
    expected = [
        value
        for row in (1, 4)
        for value in [0.0] * len(data["prompt_ids"][row]) + list(range(1, len(data["gae"][row]) + 1))
    ]
    assert micro.advantages.tolist() == expected


def test_further_columns_are_numbers_of_rows_or_of_tokens(queue: Client) -> None:
    data = made(3)
    data["values"] = [
        np.full(len(response), row, np.float64) for row, response in enumerate(data["response_ids"])
    ]
    micro = packed(taken(queue, data), [2, 1], Fields(extra=("values", "id")))
    assert micro.extra["id"].tolist() == [2, 1]
    assert micro.extra["values"].dtype == torch.float64
    lengths = [(len(data["prompt_ids"][row]), len(data["response_ids"][row])) for row in (2, 1)]
    expected = [0] * lengths[0][0] + [2] * lengths[0][1] + [0] * lengths[1][0] + [1] * lengths[1][1]
    assert micro.extra["values"].tolist() == expected


def test_bfloat16_is_read_as_numbers_not_as_bits(queue: Client) -> None:
    data = made(2)
    halves = [torch.full((len(response),), -0.5, dtype=torch.bfloat16) for response in data["response_ids"]]
    lists = torch.nested.as_nested_tensor(halves, layout=torch.jagged)
    data |= {
        "rollout_logprobs": lists,
        "values": lists,
        "advantage": torch.tensor([1.5, -2], dtype=torch.bfloat16),
    }
    micro = packed(taken(queue, data), [0, 1], Fields(extra=("values",)))
    assert micro.rollout_logprobs is not None
    assert set(micro.rollout_logprobs.tolist()) == {0.0, -0.5}
    assert set(micro.advantages.tolist()) == {0.0, 1.5, -2.0}
    assert micro.extra["values"].dtype == torch.bfloat16
    assert set(micro.extra["values"].tolist()) == {0.0, -0.5}


def test_a_micro_batch_without_rows_is_a_filler(queue: Client) -> None:
    micro = packed(taken(queue, made(2)), [], Fields(extra=("id",)))
    assert micro.is_filler
    assert (micro.rows, micro.input_ids.tolist(), micro.cu_seqlens.tolist()) == (0, [0, 0], [0, 2])
    assert (micro.position_ids.tolist(), micro.loss_mask.any().item(), micro.max_seqlen) == ([0, 1], False, 2)
    assert micro.extra["id"].tolist() == [0]


def test_moved_batches_have_their_values(queue: Client) -> None:
    micro = packed(taken(queue, made(2)), [0, 1], Fields(extra=("id",)))
    moved = micro.to("meta")
    assert moved.input_ids.device.type == moved.extra["id"].device.type == "meta"
    assert moved.groups == micro.groups
    assert torch.equal(micro.to("cpu").cu_seqlens, micro.cu_seqlens)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "response_mask",
            [[1, 1], [1]],
            r"group=g handle=\d+: response_mask has 1 items; expected 2, one for",
        ),
        (
            "rollout_logprobs",
            [[], []],
            r"rollout_logprobs has 0 items; expected 2, one for each token of resp",
        ),
        ("prompt_ids", [[1], []], r"group=g handle=\d+: prompt_ids is empty; expected at least one token"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    queue: Client, column: str, values: list[list[int]], message: str
) -> None:
    lists = [np.array([1, 2]), np.array([3, 4])]
    names = ("prompt_ids", "response_ids", "response_mask", "rollout_logprobs")
    data: dict[str, Any] = dict.fromkeys(names, lists)
    data |= {"advantage": np.zeros(2), column: [np.array(row, dtype=np.int64) for row in values]}
    batch = taken(queue, data)
    with pytest.raises(BadRow, match=message):
        packed(batch, [0, 1])


def test_ids_are_integers_and_any_number_but_zero_is_trained(queue: Client) -> None:
    data = made(2) | {"response_ids": [np.array([1, 2, 3])] * 2, "rollout_logprobs": [np.zeros(3)] * 2}
    data["response_mask"] = [np.array([0.0, 0.5, 1.0])] * 2
    batch = taken(queue, {name: data[name] for name in data if name != "id"})
    micro = packed(batch, [0])
    loss_tokens = lengths_of(batch, Fields())[1][0]
    assert micro.loss_mask.tolist()[-3:] == [False, True, True]
    assert micro.loss_mask.sum() == loss_tokens == 2
    with pytest.raises(
        BadRow, match="expected lists of integers in rollout_logprobs, found lists of float64"
    ):
        packed(batch, [0], Fields(prompt="rollout_logprobs"))


def test_log_probabilities_may_be_left_out(queue: Client) -> None:
    data = made(2)
    data["rollout_logprobs"] = [np.zeros(0, np.float32)] * 2
    micro = packed(taken(queue, data), [0, 1], Fields(rollout_logprobs=None))
    assert micro.rollout_logprobs is None
    assert micro.to("cpu").rollout_logprobs is None


def test_a_column_without_numbers_is_refused(queue: Client) -> None:
    batch = taken(queue, made(2) | {"text": ["a", "b"], "n": np.ma.MaskedArray([1, 2], [True, False])})
    for name in ("text", "n"):
        with pytest.raises(BadRow, match=f"a number in each row of {name}"):
            packed(batch, [0], Fields(extra=(name,)))
    with pytest.raises(KeyError):
        packed(batch, [0], Fields(extra=("absent",)))


def test_lengths_count_prompts_responses_and_the_mask(queue: Client) -> None:
    data = made(9)
    lengths, loss_tokens = lengths_of(taken(queue, data), Fields())
    expected = [len(p) + len(r) for p, r in zip(data["prompt_ids"], data["response_ids"], strict=True)]
    assert lengths.tolist() == expected
    assert loss_tokens.tolist() == [int(mask.sum()) for mask in data["response_mask"]]


def test_flops_are_those_of_a_count_layer_by_layer() -> None:
    layers, heads, head, width_of_mlp, length = 3, 4, 8, 96, 10
    hidden = heads * head
    flops = 0
    for _ in range(layers):
        for inputs, outputs in [(hidden, hidden)] * 4 + [(hidden, width_of_mlp), (width_of_mlp, hidden)]:
            flops += length * 2 * inputs * outputs
        for query in range(length):
            # The pair of the token with itself counts half, as in an integral.
            flops += heads * 2 * (2 * head * query + head)
    parameters = layers * (4 * hidden * hidden + 2 * hidden * width_of_mlp)
    assert Flops(parameters, layers, hidden)(np.array([length])).tolist() == [flops]


def test_replicas_are_balanced_by_what_is_asked() -> None:
    # Attention dominates: a long row has the tokens of ten short rows, but costs as much as a hundred.
    lengths = np.array([4000] * 2 + [400] * 100)
    flops = Flops(parameters=1e5, layers=24, hidden_size=1024)
    spread = {}
    for by in ("tokens", flops):
        parts = balanced(costs_of(lengths, by), 4)
        loads = [sum(2e5 * n + 2 * 24 * 1024 * n * n for n in lengths[part].tolist()) for part in parts]
        spread[by] = max(loads) / (sum(loads) / 4)
    assert spread[flops] < 1.4 < 1.5 < spread["tokens"]


@pytest.mark.parametrize("seed", range(4))
def test_parts_differ_by_at_most_one_row(seed: int) -> None:
    random = np.random.default_rng(seed)
    costs, parts = random.integers(1, 100, 50 * seed + 7).astype(float), 2 + seed
    split = balanced(costs, parts)
    assert sorted(itertools.chain.from_iterable(part.tolist() for part in split)) == list(range(len(costs)))
    loads = [costs[part].sum() for part in split]
    assert max(loads) - min(loads) <= costs.max()
    assert all(len(part) for part in split)


def test_rows_without_cost_are_divided_too() -> None:
    assert [len(part) for part in balanced(np.zeros(10), 4)] == [3, 3, 2, 2]
    assert [len(part) for part in balanced(np.ones(1), 3)] == [1, 0, 0]


@pytest.mark.parametrize("cost", [lambda n: n[:1], lambda n: -n, lambda n: n * np.nan])
def test_costs_must_be_costs(cost: Any) -> None:
    with pytest.raises(LoaderError, match="expected a cost of at least 0 for each of 3 lengths"):
        costs_of(np.array([1, 2, 3]), cost)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("more", [0, 1, 5])
def test_micro_batches_keep_the_budget(seed: int, more: int) -> None:
    lengths, budget = np.random.default_rng(seed).integers(1, 60, 40), 64
    few = len(fewest(lengths, budget))
    assert few >= -(-int(lengths.sum()) // budget)
    split = micro_batches(lengths, budget, few + more)
    assert len(split) == few + more
    assert sorted(itertools.chain.from_iterable(part.tolist() for part in split)) == list(range(40))
    assert max(lengths[part].sum() for part in split) <= budget


def test_few_micro_batches_are_near_the_fewest_possible() -> None:
    # Each pair fills the budget exactly, so the smallest possible number of parts is known.
    lengths = np.array([length for half in range(1, 33) for length in (half, 64 - half)])
    assert 32 <= len(fewest(lengths, 64)) <= 32 * 11 / 9 + 1


def test_a_row_beyond_the_budget_is_alone() -> None:
    lengths = np.array([5, 100, 5])
    split = micro_batches(lengths, 10, len(fewest(lengths, 10)))
    assert sorted(part.tolist() for part in split) == [[0, 2], [1]]


def test_there_may_be_more_micro_batches_than_rows() -> None:
    split = micro_batches(np.array([3, 4]), 8, 4)
    assert sorted(len(part) for part in split) == [0, 0, 1, 1]
    assert sorted(len(part) for part in micro_batches(np.array([], dtype=np.int64), 8, 2)) == [0, 0]
