"""Makes batches of verl from rows of the queue, and columns of the queue from the results of verl.

    import rolldock
    from rolldock.verl import to_data_proto, write_back

    with client.take(groups=64, at_least=64) as batch:
        data = to_data_proto(batch, prompt_length=1024, response_length=8192)
        data = data.union(actor.compute_log_prob(data))
        write_back(batch, data, ["old_log_probs"])

`to_data_proto` gives padded batches, and needs verl. `to_tensordict` gives batches without padding, as verl's
V1 trainer has. `rolldock.verl.keyed` and `rolldock.verl.rollout` put them into `rolldock.transfer_queue`. The
guide is in `docs/src/trainer.md`.
"""

from rolldock.verl import _needed as _needed
from rolldock.verl.back import columns_of, write_back
from rolldock.verl.batches import to_data_proto, to_tensordict
from rolldock.verl.errors import BadBatch, RolloutEnded
from rolldock.verl.source import Columns

__all__ = [
    "BadBatch",
    "Columns",
    "RolloutEnded",
    "columns_of",
    "to_data_proto",
    "to_tensordict",
    "write_back",
]
