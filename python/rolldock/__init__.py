"""Rolldock's transfer queue for Python.

    import rolldock

    client = rolldock.Client("http://127.0.0.1:7070")
    for batch in client.batches(groups=8):
        with batch:
            train(batch["response_ids"], batch["advantage"])

`Client` and `AsyncClient` are clients of a server or of a queue in this process. `Batch` and `AsyncBatch` are
rows under a lease. `Policy` and `AsyncPolicy` announce versions of weights to a run. Exceptions are in
`rolldock.errors`. `rolldock.torch` has a loader for data-parallel training, `rolldock.transfer_queue` the
interface of TransferQueue, `rolldock.data_pool` and `rolldock.transfer_dock` those of DataPool and
TransferDock, and `rolldock.verl` batches of verl. The guide is in `docs/src/python.md`.

NumPy and torch are imported when they are first used, and neither is required to import this package.
"""

from rolldock import errors
from rolldock._calls import DeclareOptions, KeyedRow, PutOptions, Share, TakeOptions
from rolldock._rolldock import Column, __version__
from rolldock.aio import AsyncClient
from rolldock.client import Client
from rolldock.columns import Ragged
from rolldock.errors import QueueError, RolldockError
from rolldock.policy import AsyncPolicy, Policy
from rolldock.table import AsyncBatch, Batch, Table

__all__ = [
    "AsyncBatch",
    "AsyncClient",
    "AsyncPolicy",
    "Batch",
    "Client",
    "Column",
    "DeclareOptions",
    "KeyedRow",
    "Policy",
    "PutOptions",
    "QueueError",
    "Ragged",
    "RolldockError",
    "Share",
    "Table",
    "TakeOptions",
    "__version__",
    "errors",
]
