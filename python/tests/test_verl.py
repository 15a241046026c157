"""Rows as batches of verl, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from verl_support import made, taken, tensordict, torch, verl

from rolldock import Client
from rolldock.verl import BadBatch, Columns, columns_of, to_data_proto, to_tensordict, write_back

SEEDS = range(8)


def rows_of(seed: int) -> dict[str, Any]:
    return made(2 * (1 + seed), seed, length_end=2 + 3 * seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_padded_batch_has_the_tokens_of_each_row(queue: Client, seed: int) -> None:
    verl()
    data = rows_of(seed)
    batch = taken(queue, data, groups=2)
    proto = to_data_proto(batch, prompt_length=40, response_length=50, pad_token_id=7)
    tensors = proto.batch
    assert tensors["input_ids"].shape == (len(batch), 90)
    for name in ("prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask"):
        assert tensors[name].dtype == torch.int64, name
    for name in ("rollout_log_probs", "rm_scores", "token_level_scores", "token_level_rewards"):
        assert tensors[name].dtype == torch.float32, name
        assert tensors[name].shape == (len(batch), 50), name
    for row in range(len(batch)):
        prompt, response = data["prompt_ids"][row].tolist(), data["response_ids"][row].tolist()
        left, right = 40 - len(prompt), 50 - len(response)
        ids = [7] * left + prompt + response + [7] * right
        assert tensors["input_ids"][row].tolist() == ids
        assert tensors["prompts"][row].tolist() + tensors["responses"][row].tolist() == ids
        length = len(prompt) + len(response)
        assert tensors["attention_mask"][row].tolist() == [0] * left + [1] * length + [0] * right
        assert tensors["position_ids"][row, left : left + length].tolist() == list(range(length))
        assert tensors["response_mask"][row].tolist() == [*data["response_mask"][row], *[0] * right]
        logprobs = [*data["rollout_logprobs"][row].tolist(), *[0.0] * right]
        assert tensors["rollout_log_probs"][row].tolist() == logprobs
        scores = [0.0] * (len(response) - 1) + [float(data["reward"][row])] + [0.0] * right
        assert tensors["rm_scores"][row].tolist() == scores
    assert proto.meta_info["global_token_num"] == tensors["attention_mask"].sum(1).tolist()
    others = proto.non_tensor_batch
    assert others["uid"].tolist() == batch.groups
    assert [one["ground_truth"] for one in others["reward_model"]] == data["ground_truth"]
    assert others["min_global_steps"].tolist() == data["policy_version_min"].tolist()
    assert [others[name].tolist() for name in proto.meta_info["reward_extra_keys"]] == [
        data["score"].tolist(),
        data["acc"].tolist(),
    ]


def test_verl_makes_the_same_position_ids_and_advantages(queue: Client) -> None:
    verl()
    algorithms = pytest.importorskip("verl.trainer.ppo.core_algos")
    model = pytest.importorskip("verl.utils.model")
    data = made(12, seed=3)
    data["response_mask"] = [np.ones_like(mask) for mask in data["response_mask"]]
    rewards = data["reward"].reshape(3, 4).astype(np.float64)
    spread = rewards.std(axis=1, ddof=1, keepdims=True) + 1e-6
    data["advantage"] = ((rewards - rewards.mean(axis=1, keepdims=True)) / spread).ravel().astype(np.float32)
    batch = taken(queue, data, groups=3)
    proto = to_data_proto(batch, columns=Columns(advantages="advantage"))
    assert torch.equal(
        model.compute_position_id_with_mask(proto.batch["attention_mask"]), proto.batch["position_ids"]
    )
    theirs, returns = algorithms.compute_grpo_outcome_advantage(
        token_level_rewards=proto.batch["token_level_rewards"],
        response_mask=proto.batch["response_mask"],
        index=proto.non_tensor_batch["uid"],
    )
    torch.testing.assert_close(proto.batch["advantages"], theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(proto.batch["returns"], returns, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_without_padding_has_the_tokens_of_each_row(queue: Client, seed: int) -> None:
    data = rows_of(seed)
    batch = taken(queue, data, groups=2)
    fields = to_tensordict(batch, columns=Columns(advantages="advantage"))
    rows = {name: fields[name].unbind() for name in ("prompts", "input_ids", "position_ids", "loss_mask")}
    rows |= {name: fields[name].unbind() for name in ("rm_scores", "rollout_log_probs", "advantages")}
    for row in range(len(batch)):
        prompt, response = data["prompt_ids"][row].tolist(), data["response_ids"][row].tolist()
        assert rows["prompts"][row].tolist() == prompt
        assert rows["input_ids"][row].tolist() == prompt + response
        assert rows["position_ids"][row].tolist() == list(range(len(prompt) + len(response)))
        assert rows["loss_mask"][row].tolist() == data["response_mask"][row].tolist()
        assert rows["rm_scores"][row].sum() == data["reward"][row]
        assert rows["rollout_log_probs"][row].tolist() == data["rollout_logprobs"][row].tolist()
        weights = data["advantage"][row] * data["response_mask"][row]
        assert rows["advantages"][row].tolist() == weights.tolist()
    assert fields["uid"] == batch.groups
    assert fields["num_turns"].tolist() == [2] * len(batch)
    extra = fields.get("extra_fields").tolist()
    assert [one["max_global_steps"] for one in extra] == data["policy_version_max"].tolist()
    assert [one["reward_extra_info"]["acc"] for one in extra] == data["acc"].tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_verl_computes_is_written_to_its_rows(queue: Client, seed: int) -> None:
    proto_of = verl().DataProto
    random = np.random.default_rng(seed)
    data = rows_of(seed)
    queue.declare("p", tasks=["train", "late"])
    batch = taken(queue, data, groups=2)
    proto = to_data_proto(batch, response_length=40)
    width = proto.batch["responses"].shape[1]
    values = torch.from_numpy(random.normal(size=(len(batch), width)).astype(np.float32))
    proto = proto.union(proto_of.from_dict(tensors={"old_log_probs": values, "weight": values[:, 0].clone()}))
    # verl gives the ranks other rows than ours, in another order.
    order = random.permutation(len(batch))
    proto.reorder(torch.from_numpy(order))
    write_back(batch, proto, {"old_log_probs": "old_logprobs", "weight": "weight"})
    batch.ack()
    late = queue.take("p", task="late", groups=2)
    assert late is not None
    for row in range(len(late)):
        length = len(data["response_ids"][row])
        assert late["old_logprobs"][row].tolist() == values[row, :length].tolist()
    assert late["weight"].tolist() == values[:, 0].tolist()


def test_fields_without_padding_are_written_too(queue: Client) -> None:
    data = made(4, seed=1)
    batch = taken(queue, data)
    fields = to_tensordict(batch)
    fields["values"] = fields["rollout_log_probs"] * 2
    handles, columns = columns_of(fields, ["values", "data_source"])
    queue.write("p", handles, {"critic": columns["values"]})
    write_back(batch, fields, ["values"])
    written = queue.get("p", batch.handles, columns=["values", "critic"])
    for row in range(4):
        expected = (2 * data["rollout_logprobs"][row]).tolist()
        assert written["values"][row].tolist() == written["critic"][row].tolist() == expected
    assert columns["data_source"] == data["data_source"]


def test_further_columns_keep_their_names(queue: Client) -> None:
    verl()
    data = made(3, seed=2)
    data["ref_log_prob"] = [values * 2 for values in data["rollout_logprobs"]]
    data["weight"] = np.arange(3, dtype=np.float64)
    data["note"] = ["a", "b", "c"]
    batch = taken(queue, data)
    columns = Columns(extra=("ref_log_prob", "weight", "note"))
    proto = to_data_proto(batch, columns=columns)
    torch.testing.assert_close(proto.batch["ref_log_prob"], 2 * proto.batch["rollout_log_probs"])
    assert proto.batch["weight"].tolist() == [0, 1, 2]
    assert proto.non_tensor_batch["note"].tolist() == ["a", "b", "c"]
    fields = to_tensordict(batch, columns=columns)
    assert fields["ref_log_prob"].is_nested
    assert fields["note"] == ["a", "b", "c"]


def bad(change: dict[str, Any], columns: Columns | None, message: str) -> Any:
    return pytest.param(change, columns, message)


@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [
        bad({"response_ids": [[1], []]}, None, r"group=group-0 handle=\d+: response_ids is empty"),
        bad({"prompt_ids": [[], [1]]}, None, "prompt_ids is empty"),
        bad({"response_mask": [[1], [1, 1, 1]]}, None, "response_mask has 3 items; expected 2"),
        bad({"rollout_logprobs": [[], []]}, None, "rollout_logprobs has 0 items; expected 1"),
        bad({}, Columns(reward="rewrad"), r"expected the columns \['rewrad'\], found only"),
        bad({}, Columns(prompt="reward"), "column=reward: expected lists of numbers"),
        bad({}, Columns(prompt="rollout_logprobs"), "column=rollout_logprobs: expected lists of integers"),
        bad({}, Columns(reward="data_source"), "column=data_source: expected a number in each row"),
        bad({}, Columns(reward="response_mask"), "column=response_mask: expected one number in each row"),
        bad({}, Columns(infos=("response_ids",)), "column=response_ids: expected a number or a string"),
    ],
)
def test_rows_that_do_not_fit_are_named(
    queue: Client, change: dict[str, Any], columns: Columns | None, message: str
) -> None:
    data = made(2, seed=0)
    lists: dict[str, tuple[Any, list[list[Any]]]] = {
        "prompt_ids": (np.uint32, [[1], [2]]),
        "response_ids": (np.uint32, [[1], [1, 2]]),
        "response_mask": (np.uint8, [[1], [1, 1]]),
        "rollout_logprobs": (np.float32, [[0], [0, 0]]),
    }
    for name, (dtype, values) in lists.items():
        data[name] = [np.array(row, dtype) for row in change.get(name, values)]
    batch = taken(queue, data)
    with pytest.raises(BadBatch, match=message):
        to_tensordict(batch, columns=columns)


def test_batches_that_do_not_fit_are_named(queue: Client) -> None:
    data = made(4, seed=5)
    batch = taken(queue, data, groups=2)
    fields = to_tensordict(batch)
    with pytest.raises(BadBatch, match="expected the field values, found"):
        columns_of(fields, ["values"])
    with pytest.raises(BadBatch, match="one value for each token of the responses"):
        columns_of(fields, ["input_ids"])
    twice = tensordict.TensorDict({"handle": fields["handle"].repeat(2)}, batch_size=8)
    with pytest.raises(BadBatch, match="every row once"):
        columns_of(twice, [])
    with pytest.raises(BadBatch, match="expected the field handle"):
        columns_of(tensordict.TensorDict({"x": torch.zeros(2)}, batch_size=2), ["x"])
    part = tensordict.TensorDict({"handle": fields["handle"][:2], "x": torch.zeros(2)}, batch_size=2)
    with pytest.raises(BadBatch, match="expected the rows of the batch, 4, found 2"):
        write_back(batch, part, ["x"])


def test_a_length_that_is_too_short_is_named(queue: Client) -> None:
    verl()
    batch = taken(queue, made(4, seed=6))
    with pytest.raises(BadBatch, match="at most response_length=1 tokens"):
        to_data_proto(batch, response_length=1)
