"""Rows of the queue as tensors for data-parallel training with torch.

    from rolldock.torch import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset("http://127.0.0.1:7070", groups=64, at_least=64)
    with StreamingDataLoader(dataset, micro_batch_tokens=16_384) as loader:
        for batch in loader:
            for micro in batch:
                train(micro.input_ids, micro.position_ids, micro.cu_seqlens, micro.loss_mask)

`StreamingDataset` takes batches and divides them among the ranks of a job. `StreamingDataLoader` packs them
into micro-batches, prefetches, and has a state for checkpoints. The guide is in `docs/src/python.md`.
"""

from rolldock.torch.balance import Flops
from rolldock.torch.errors import BadRow, BadState, LoaderError, RankLost
from rolldock.torch.loader import StreamingDataLoader, StreamingDataset, TrainBatch
from rolldock.torch.packing import Fields, MicroBatch
from rolldock.torch.plan import Totals
from rolldock.torch.ranks import Ranks

__all__ = [
    "BadRow",
    "BadState",
    "Fields",
    "Flops",
    "LoaderError",
    "MicroBatch",
    "RankLost",
    "Ranks",
    "StreamingDataLoader",
    "StreamingDataset",
    "Totals",
    "TrainBatch",
]
