"""Makes batches of verl from rows of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict

from rolldock.verl.errors import BadBatch
from rolldock.verl.source import Columns, Flat, Source, objects

if TYPE_CHECKING:
    from verl import DataProto

    from rolldock.verl.source import Leased

#: The field that has the handle of each row.
HANDLE = "handle"


def to_data_proto(
    batch: Leased,
    *,
    prompt_length: int | None = None,
    response_length: int | None = None,
    pad_token_id: int = 0,
    columns: Columns | None = None,
    meta_info: Mapping[str, Any] | None = None,
) -> DataProto:
    """Returns rows as a padded batch, with the names and types that verl's rollout gives its trainer.

    `batch` of the result has these tensors, where P and R are the two lengths:

    - `prompts`, padded on the left, and `responses`, padded on the right: int64, `(rows, P)`, `(rows, R)`
    - `input_ids`, `attention_mask`, `position_ids`: int64, `(rows, P + R)`
    - `response_mask`: int64, `(rows, R)`
    - `rollout_log_probs`: float32, nats, `(rows, R)`
    - `rm_scores`, `token_level_scores`, `token_level_rewards`: float32, the reward at the last token of the
      response, `(rows, R)`
    - `advantages`, `returns`: float32, `(rows, R)`, if `columns` names advantages
    - `handle`: int64, `(rows,)`, which `write_back` needs

    `non_tensor_batch` has `uid` (the group), `data_source`, `reward_model` (with `ground_truth`),
    `__num_turns__`, `min_global_steps`, `max_global_steps`, and the columns of `columns.infos`. `meta_info`
    has `global_token_num` (the tokens of each row) and `reward_extra_keys`.

    Args:
        batch: the rows.
        prompt_length: P, verl's `data.max_prompt_length`. By default the length of the longest prompt.
        response_length: R, verl's `data.max_response_length`. By default the length of the longest response.
        pad_token_id: the token id of the padding.
        columns: the columns of the rows. By default those of a run.
        meta_info: more for `meta_info`, such as `temperature`.

    Raises:
        BadBatch: the rows do not fit, or a prompt or a response is too long.
        ImportError: verl is not installed.
    """
    from verl import DataProto

    source = Source(batch, columns or Columns())
    of_responses = source.of_responses()
    prompt_length = _length("prompt_length", prompt_length, source.prompts)
    response_length = _length("response_length", response_length, source.responses)
    tensors = {name: flat.padded(response_length) for name, flat in of_responses.items()}
    tensors["responses"] = source.responses.padded(response_length, pad_token_id)
    tensors["prompts"] = source.prompts.padded(prompt_length, pad_token_id, "left")
    tensors["input_ids"] = torch.cat([tensors["prompts"], tensors["responses"]], dim=1)
    are_prompts = _ones(source.prompts).padded(prompt_length, 0, "left")
    tensors["attention_mask"] = torch.cat(
        [are_prompts, _ones(source.responses).padded(response_length)], dim=1
    )
    tensors["position_ids"] = (tensors["attention_mask"].cumsum(1) - 1).clamp(min=0)
    extra, words = source.extra_of_rows()
    infos = source.infos()
    labels = {**source.labels(), **source.versions(), **words}
    lengths = source.prompts.lengths + source.responses.lengths
    return DataProto(
        batch=TensorDict({**tensors, **extra, HANDLE: source.handles}, batch_size=len(batch)),
        non_tensor_batch={
            "__num_turns__": np.array(source.turns(), dtype=np.int32),
            **{name: objects(values) for name, values in labels.items()},
            **{name: np.array(values) for name, values in infos.items()},
        },
        meta_info={
            "global_token_num": lengths.tolist(),
            "reward_extra_keys": list(infos),
            **(meta_info or {}),
        },
    )


def to_tensordict(batch: Leased, *, columns: Columns | None = None) -> TensorDict:
    """Returns rows as a batch without padding, with the fields that verl's V1 trainer keeps in its transfer
    queue. It needs no verl.

    Nested tensors of the jagged layout, of shape `(rows, ragged)`: `prompts`, `responses`, `input_ids`,
    `position_ids`, `response_mask`, `loss_mask` (int64), `rollout_log_probs`, `rm_scores`,
    `token_level_scores`, `token_level_rewards`, and `advantages` and `returns` if `columns` names advantages
    (float32). Tensors of shape `(rows,)`: `num_turns` and `handle` (int64). Others: `uid`, `data_source`,
    `reward_model` and `extra_fields`, with `min_global_steps`, `max_global_steps` and `reward_extra_info`.

    Args:
        batch: the rows.
        columns: the columns of the rows. By default those of a run.

    Raises:
        BadBatch: the rows do not fit.
    """
    source = Source(batch, columns or Columns())
    lists = source.of_responses()
    prompts, responses = source.prompts, source.responses
    lengths = prompts.lengths + responses.lengths
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    places = torch.arange(int(lengths.sum())) - starts
    is_prompt = places < prompts.lengths.repeat_interleave(lengths)
    input_ids = torch.empty_like(places)
    input_ids[is_prompt], input_ids[~is_prompt] = prompts.values, responses.values
    lists["prompts"] = prompts
    lists["input_ids"], lists["position_ids"] = Flat(input_ids, lengths), Flat(places, lengths)
    lists["loss_mask"] = Flat(lists["response_mask"].values.clone(), responses.lengths)
    extra, words = source.extra_of_rows()
    others = {**source.labels(), **words, "extra_fields": _extra_fields(source, len(batch))}
    return TensorDict(
        {
            **{name: flat.jagged() for name, flat in lists.items()},
            **extra,
            "num_turns": torch.tensor(source.turns()),
            HANDLE: source.handles,
            **{name: NonTensorStack(*values) for name, values in others.items()},
        },
        batch_size=len(batch),
    )


def _extra_fields(source: Source, rows: int) -> list[dict[str, Any]]:
    versions, infos = source.versions(), source.infos()
    return [
        {
            **{name: values[row] for name, values in versions.items()},
            "reward_extra_info": {name: values[row] for name, values in infos.items()},
        }
        for row in range(rows)
    ]


def _ones(flat: Flat) -> Flat:
    return Flat(torch.ones_like(flat.values), flat.lengths)


def _length(name: str, wanted: int | None, lists: Flat) -> int:
    longest = int(lists.lengths.max())
    if wanted is None:
        return longest
    if longest > wanted:
        raise BadBatch(f"expected at most {name}={wanted} tokens, found {longest} in a row")
    return wanted
