"""A loader of batches for PyTorch."""

from rolldock.transfer_queue.dataloader.streaming_dataloader import StreamingDataLoader
from rolldock.transfer_queue.dataloader.streaming_dataset import StreamingDataset

__all__ = ["StreamingDataLoader", "StreamingDataset"]
