"""TransferQueue's interface over Rolldock's queue: change `import transfer_queue as tq` to
`import rolldock.transfer_queue as tq`.

    import rolldock.transfer_queue as tq

    tq.init()
    tq.kv_put("sample-1", "train", fields={"input_ids": torch.tensor([1, 2, 3])}, tag={"score": 0.5})
    data = tq.kv_batch_get("sample-1", "train")
    tq.close()

It has the public interface of TransferQueue 0.1.11. `docs/src/transfer-queue-python.md` lists this interface
and its differences from TransferQueue. This package needs the extra `transfer_queue`: torch, tensordict,
omegaconf and NumPy.
"""

from rolldock.transfer_queue import _needed as _needed
from rolldock.transfer_queue.checkpoint import load_checkpoint, save_checkpoint
from rolldock.transfer_queue.client import TransferQueueClient
from rolldock.transfer_queue.dataloader import StreamingDataLoader, StreamingDataset
from rolldock.transfer_queue.errors import StorageKeyNotFoundError
from rolldock.transfer_queue.interface import (
    async_kv_batch_get,
    async_kv_batch_get_by_meta,
    async_kv_batch_put,
    async_kv_clear,
    async_kv_list,
    async_kv_put,
    kv_batch_get,
    kv_batch_get_by_meta,
    kv_batch_put,
    kv_clear,
    kv_list,
    kv_put,
)
from rolldock.transfer_queue.lifecycle import close, get_client, get_metrics_endpoint, init
from rolldock.transfer_queue.metadata import BatchMeta, KVBatchMeta
from rolldock.transfer_queue.sampler import (
    BaseSampler,
    GRPOGroupNSampler,
    RankAwareSampler,
    SeqlenBalancedSampler,
    SequentialSampler,
)

__all__ = [
    "BaseSampler",
    "BatchMeta",
    "GRPOGroupNSampler",
    "KVBatchMeta",
    "RankAwareSampler",
    "SeqlenBalancedSampler",
    "SequentialSampler",
    "StorageKeyNotFoundError",
    "StreamingDataLoader",
    "StreamingDataset",
    "TransferQueueClient",
    "async_kv_batch_get",
    "async_kv_batch_get_by_meta",
    "async_kv_batch_put",
    "async_kv_clear",
    "async_kv_list",
    "async_kv_put",
    "close",
    "get_client",
    "get_metrics_endpoint",
    "init",
    "kv_batch_get",
    "kv_batch_get_by_meta",
    "kv_batch_put",
    "kv_clear",
    "kv_list",
    "kv_put",
    "load_checkpoint",
    "save_checkpoint",
]
