"""The dataset and the loader of a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import IterableDataset, get_worker_info

from rolldock.client import Client
from rolldock.torch.errors import BadState, LoaderError
from rolldock.torch.packing import Fields, MicroBatch
from rolldock.torch.plan import Settings, Totals
from rolldock.torch.ranks import Ranks
from rolldock.torch.stream import Stream
from rolldock.torch.taking import Used

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from rolldock._calls import TakeOptions
    from rolldock.columns import Array
    from rolldock.torch.balance import Cost
    from rolldock.torch.reading import Read

_STATE_VERSION = 1
_CHOSEN_HERE = ("columns", "share", "only")


class TrainBatch:
    """This rank's rows of a batch. Iterating over it yields micro-batches."""

    def __init__(self, read: Read, stream: Stream, *, knows_all: bool) -> None:
        self._read, self._stream, self._knows_all = read, stream, knows_all
        #: The flat batches.
        self.micro_batches: list[MicroBatch] = read.micro_batches

    def __iter__(self) -> Iterator[MicroBatch]:
        return iter(self.micro_batches)

    def __len__(self) -> int:
        """The number of micro-batches."""
        return len(self.micro_batches)

    def __repr__(self) -> str:
        return f"TrainBatch(number={self.number}, rows={self.rows}, micro_batches={len(self)})"

    @property
    def number(self) -> int:
        """The number of the batch since the loader was made, from 1. Numbers rise and may have gaps."""
        return self._read.plan.number

    @property
    def rows(self) -> int:
        """The number of rows of this rank."""
        return len(self._read.part.places)

    @property
    def tokens(self) -> int:
        """The number of tokens of this rank's rows, in prompts and responses."""
        return sum(micro.tokens for micro in self if not micro.is_filler)

    @property
    def loss_tokens(self) -> int:
        """The number of tokens to learn from in this rank's rows."""
        return sum(int(micro.loss_mask.sum()) for micro in self)

    @property
    def totals(self) -> Totals:
        """The size of the batch over all replicas.

        Raises:
            LoaderError: there are several ranks without a process group, so a rank does not know the others'
                rows.
        """
        if not self._knows_all:
            raise LoaderError("the totals of a batch are known only with a process group; see Ranks")
        return self._read.plan.totals

    @property
    def handles(self) -> Array:
        """The handle of each row of this rank, shape `(rows,)`, uint64, in the order of the queue."""
        return self._read.part.labels.handles

    @property
    def groups(self) -> list[str]:
        """The group of each row of this rank, in the order of the queue."""
        return self._read.part.labels.groups

    def ack(self) -> None:
        """Consumes the rows now, before the next batch is requested. Call it after the optimizer's step, or
        after a checkpoint. Call it on every rank. With a process group, the first rank acks for all. The call
        does nothing if the batch was acked already, or if a later batch was returned.
        """
        self._stream.ack_of(self.number)


class StreamingDataset(IterableDataset):
    """This rank's share of the batches of a partition.

    A batch is the result of one take with these options. Its rows are divided among the replicas. Iterating
    gives `TrainBatch`es of one micro-batch each, without prefetching, until the puts have ended and every row
    is used. `StreamingDataLoader` adds micro-batches, prefetching and a state.

    Args:
        client: a client, or the URL of a server. With a process group, every rank needs a client of the same
            server, and an embedded queue is an error.
        partition: the partition.
        task: the task that takes.
        fields: the columns of a row.
        ranks: the place of this process. `Ranks.here()` by default, which is a collective call if
            `torch.distributed` is initialised.
        balance: what is balanced over the replicas: `"tokens"`, or a function from lengths to costs, such as
            `Flops`.
        wait_s: the longest wait for a batch after `next` was called, in seconds. There is no limit by
            default.
        **options: options of the take of a whole batch: `groups`, `rows` or `tokens`, `at_least`, `order`,
            `min_policy_version`, `max_staleness`, `stale`, `holder`. With a process group, the options of its
            first rank count.

    Raises:
        LoaderError: an option does not fit.
    """

    def __init__(
        self,
        client: Client | str,
        partition: str = "train",
        *,
        task: str = "train",
        fields: Fields | None = None,
        ranks: Ranks | None = None,
        balance: Literal["tokens"] | Cost = "tokens",
        wait_s: float | None = None,
        **options: Unpack[TakeOptions],
    ) -> None:
        super().__init__()
        refused = [name for name in _CHOSEN_HERE if name in options]
        if refused:
            raise LoaderError(f"expected options that the loader does not choose itself, found {refused[0]}")
        if not any(name in options for name in ("groups", "rows", "tokens")):
            raise LoaderError("expected the size of a batch: groups, rows or tokens")
        if balance != "tokens" and not callable(balance):
            raise LoaderError(f"expected balance='tokens' or a cost such as Flops, found {balance!r}")
        ranks = Ranks.here() if ranks is None else ranks
        if ranks.group is None and ranks.replicas > 1 and balance != "tokens":
            raise LoaderError(
                "expected a process group, or balance='tokens': without a group the queue divides the rows"
            )
        client = Client(client) if isinstance(client, str) else client
        fields = Fields() if fields is None else fields
        #: What is taken, and how it is divided.
        self.settings = Settings(client, partition, task, options, wait_s, fields, ranks, balance)

    def __iter__(self) -> Iterator[TrainBatch]:
        """Returns a `StreamingDataLoader` of this dataset without prefetching.

        Raises:
            LoaderError: this is a worker process of torch's `DataLoader`, which may end before its leases are
                acked.
        """
        if get_worker_info() is not None:
            raise LoaderError("expected num_workers=0: StreamingDataLoader prefetches in threads")
        return StreamingDataLoader(self, prefetch=0)


class StreamingDataLoader(Iterator[TrainBatch]):
    """Batches of a dataset: packed into micro-batches and prefetched in threads.

        loader = StreamingDataLoader(StreamingDataset(url, groups=64), micro_batch_tokens=16_384)
        for batch in loader:
            for micro in batch:
                loss(model, micro, batch.totals.loss_tokens).backward()
            optimizer.step()
            save(model, optimizer, loader.state_dict())

    A batch is acked when the next batch is requested, or by `batch.ack()`. Its lease is renewed until then.
    `close`, which the end of a `with` block calls, gives unused batches back. The batches of a killed process
    are delivered again when their leases expire. The loader is one stream: a second `for` loop continues
    after the last batch of the first loop. The stream ends when the puts have ended and every row is used.

    With a process group, `next` is a collective call, so each iteration of the loop is one too.

    Args:
        dataset: what to take.
        micro_batch_tokens: the maximum number of tokens of a micro-batch. A longer row is a micro-batch of
            its own. By default, all rows are one micro-batch. With a process group, all ranks have the same
            number of micro-batches. If a rank has no rows for a micro-batch, it gets a filler.
        prefetch: the maximum number of batches that are taken beyond the batch in use. This number bounds the
            memory.
        pin_memory: whether tensors are in pinned memory, from which copies to an accelerator are
            asynchronous.

    Raises:
        LoaderError: an argument is out of range, or there is no accelerator for `pin_memory`.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        *,
        micro_batch_tokens: int | None = None,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> None:
        if micro_batch_tokens is not None and micro_batch_tokens < 1:
            raise LoaderError(f"expected micro_batch_tokens of at least 1, found {micro_batch_tokens}")
        if prefetch < 0:
            raise LoaderError(f"expected prefetch of at least 0, found {prefetch}")
        # torch before 2.6 knows CUDA only.
        if pin_memory and not getattr(torch, "accelerator", torch.cuda).is_available():
            raise LoaderError("expected an accelerator for pin_memory=True, found none")
        self._settings = replace(
            dataset.settings,
            micro_batch_tokens=micro_batch_tokens,
            prefetch=prefetch,
            pin_memory=pin_memory,
        )
        ranks = self._settings.ranks
        self._knows_all = ranks.group is not None or ranks.replicas == 1
        self._used = Used()
        self._stream: Stream | None = None
        self._last: list[tuple[int, str]] = []
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TrainBatch:
        """Acks the last batch, and returns the next one.

        Raises:
            BadRow: the columns of a row do not fit together. The batch is given back. With a process
                group the loader has then ended.
            Deadline: there was no batch within `wait_s`. The next call waits again.
            RankLost: another rank has died, or has failed.
        """
        if self._is_closed:
            raise StopIteration
        if self._stream is None:
            self._stream = Stream(self._settings, self._used)
        read = next(self._stream)
        self._last = [row for part in read.plan.parts for row in part.labels.rows()]
        return TrainBatch(read, self._stream, knows_all=self._knows_all)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: the rows of the last batch, and the rows whose ack failed.

        Call it after the optimizer's step on the batch, and save it together with the model. A job that
        starts from the checkpoint gets every row that was unused at the checkpoint. If the last batch was not
        acked, its rows are delivered again, and the loader acks them without using them. A checkpoint after
        every step repeats no row and misses none. With a process group, the state of the first rank is enough
        for all.
        """
        rows = sorted({*self._used.rows(), *self._last})
        return {
            "version": _STATE_VERSION,
            "partition": self._settings.partition,
            "task": self._settings.task,
            "handles": [handle for handle, _ in rows],
            "groups": [group for _, group in rows],
        }

    def load_state_dict(self, *states: Mapping[str, Any]) -> None:
        """Continues from a state. Call it before the first batch, with a state of the same queue.

        Args:
            *states: the state of a loader. Without a process group, the states of all ranks, because a row
                may be delivered again to another rank.

        Raises:
            BadState: a state is of another partition or task, or is damaged.
            LoaderError: the loader has returned a batch already.
        """
        if self._stream is not None:
            raise LoaderError("expected load_state_dict before the first batch")
        for state in states:
            self._used.add(self._rows_of(state))

    def _rows_of(self, state: Mapping[str, Any]) -> list[tuple[int, str]]:
        if state.get("version") != _STATE_VERSION:
            raise BadState(f"expected a state of version {_STATE_VERSION}, found {state.get('version')!r}")
        for name in ("partition", "task"):
            ours = getattr(self._settings, name)
            if state.get(name) != ours:
                raise BadState(f"expected a state of {name}={ours}, found {name}={state.get(name)}")
        handles, groups = state.get("handles"), state.get("groups")
        if not (
            isinstance(handles, Sequence) and isinstance(groups, Sequence) and len(handles) == len(groups)
        ):
            raise BadState("expected a handle and a group for each row of the state")
        return [(int(handle), str(group)) for handle, group in zip(handles, groups, strict=True)]

    def close(self) -> None:
        """Ends the stream. Gives back the last batch, if it was not acked, and the prefetched batches. A call
        of `next` on another rank of the process group then raises `RankLost`, or waits.
        """
        self._is_closed = True
        if self._stream is not None:
            self._stream.close()
