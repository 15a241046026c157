"""Puts rows of the queue as trajectories into the transfer queue of verl's V1 trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensordict import NonTensorStack

from rolldock.transfer_queue import KVBatchMeta, kv_batch_put
from rolldock.verl.batches import to_tensordict
from rolldock.verl.errors import BadBatch
from rolldock.verl.source import Columns

if TYPE_CHECKING:
    from rolldock.verl.source import Leased


def to_kv_batch_meta(
    batch: Leased,
    *,
    partition_id: str = "train",
    uids: Mapping[str, str] | None = None,
    global_steps: int = 0,
    columns: Columns | None = None,
) -> KVBatchMeta:
    """Puts rows into `rolldock.transfer_queue` in the form in which verl's V1 trainer keeps its trajectories,
    and returns their metadata. Each row has the fields of `to_tensordict`, the key `UID_SESSION_0` and the
    tags `status`, `prompt_len`, `response_len`, `seq_len`, `global_steps`, `min_global_steps` and
    `max_global_steps`.

    The session of a row is its index in its group. `transfer_queue.init` must have been called.

    Args:
        batch: the rows.
        partition_id: the partition of the transfer queue.
        uids: the uid of each group. By default the name of the group.
        global_steps: the trainer's step to which the rows belong.
        columns: the columns of the rows. By default those of a run.

    Raises:
        BadBatch: the rows do not fit, or a uid has an underscore, at which verl would cut it.
    """
    given = columns or Columns()
    fields = to_tensordict(batch, columns=given)
    of_rows = [group if uids is None else uids[group] for group in batch.groups]
    wrong = sorted({uid for uid in of_rows if "_" in uid})
    if wrong:
        raise BadBatch(f"expected uids without an underscore, found {wrong}; name others in `uids`")
    seen: dict[str, int] = {}
    keys = []
    for uid in of_rows:
        keys.append(f"{uid}_{seen.setdefault(uid, 0)}_0")
        seen[uid] += 1
    fields["uid"] = NonTensorStack(*of_rows)
    return kv_batch_put(keys, partition_id, fields, _tags(fields, global_steps))


def _tags(fields: Any, global_steps: int) -> list[dict[str, Any]]:
    prompts = fields["prompts"].offsets().diff().tolist()
    responses = fields["responses"].offsets().diff().tolist()
    tags = []
    for prompt, response, extra in zip(prompts, responses, fields["extra_fields"].tolist(), strict=True):
        tags.append(
            {
                "status": "success",
                "prompt_len": prompt,
                "response_len": response,
                "seq_len": prompt + response,
                "global_steps": global_steps,
                "min_global_steps": extra.get("min_global_steps"),
                "max_global_steps": extra.get("max_global_steps"),
            }
        )
    return tags
