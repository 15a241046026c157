"""The options of the loader, and its ranks without a process group. Skipped where torch is not installed."""

from __future__ import annotations

from typing import Any

import pytest
from loaders import WITH_ID, counts, ids, loader, torch
from rows import filled

from rolldock import Client
from rolldock.torch import Flops, LoaderError, Ranks, StreamingDataLoader, StreamingDataset


def test_a_worker_of_a_torch_loader_is_refused(queue: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = StreamingDataset(queue, "p", groups=1)
    monkeypatch.setattr("rolldock.torch.loader.get_worker_info", lambda: object())
    with pytest.raises(LoaderError, match="expected num_workers=0"):
        iter(dataset)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the size of a batch"),
        ({"groups": 1, "columns": ["id"]}, "does not choose itself, found columns"),
        ({"groups": 1, "balance": "rows"}, "balance='tokens' or a cost such as Flops"),
        ({"groups": 1, "ranks": Ranks(0, 2), "balance": Flops(1, 1, 1)}, "expected a process group"),
    ],
)
def test_options_that_do_not_fit_are_refused(queue: Client, options: dict[str, Any], message: str) -> None:
    with pytest.raises(LoaderError, match=message):
        StreamingDataset(queue, "p", **options)


def test_arguments_of_the_loader_are_checked(queue: Client) -> None:
    dataset = StreamingDataset(queue, "p", groups=1)
    with pytest.raises(LoaderError, match="expected prefetch of at least 0, found -1"):
        StreamingDataLoader(dataset, prefetch=-1)
    with pytest.raises(LoaderError, match="expected micro_batch_tokens of at least 1, found 0"):
        StreamingDataLoader(dataset, micro_batch_tokens=0)
    if not torch.accelerator.is_available():
        with pytest.raises(LoaderError, match="expected an accelerator"):
            StreamingDataLoader(dataset, pin_memory=True)


def test_every_tensor_is_pinned_on_request(queue: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Any] = []

    def pin(tensor: Any) -> Any:
        pinned.append(tensor)
        return tensor

    if not torch.accelerator.is_available():
        # Without an accelerator there is no pinned memory.
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
        monkeypatch.setattr(
            torch.Tensor, "is_pinned", lambda tensor: any(tensor is other for other in pinned)
        )
    filled(queue, groups=1)
    dataset = StreamingDataset(queue, "p", groups=1, fields=WITH_ID)
    with StreamingDataLoader(dataset, pin_memory=True) as loading:
        (micro,) = next(loading)
    tensors = [*vars(micro).values(), *micro.extra.values()]
    tensors = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    assert len(tensors) == 7
    assert all(tensor.is_pinned() for tensor in tensors)


def test_the_queue_divides_rows_among_processes_without_a_group(queue: Client) -> None:
    filled(queue, groups=12)
    loaders = [
        [loader(queue, groups=12, ranks=Ranks(replica, 2, member, 2), prefetch=0) for member in range(2)]
        for replica in range(2)
    ]
    batches = [[next(member) for member in replica] for replica in loaders]
    assert [ids(batch) for batch in batches[0]] == [ids(batches[0][0])] * 2
    assert [ids(batch) for batch in batches[1]] == [ids(batches[1][0])] * 2
    assert sorted(ids(batches[0][0]) + ids(batches[1][0])) == list(range(48))
    tokens = [replica[0].tokens for replica in batches]
    assert abs(tokens[0] - tokens[1]) <= 0.2 * sum(tokens)
    with pytest.raises(LoaderError, match="only with a process group"):
        _ = batches[0][0].totals
    for batch in (batch for replica in batches for batch in replica):
        batch.ack()
    assert counts(queue) == (0, 0)


def test_the_numbers_of_the_ranks_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Ranks.here() == Ranks(0, 1)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert Ranks.here(members=2) == Ranks(2, 4, 1, 2)
    assert Ranks.here(rank=1, world_size=2) == Ranks(1, 2)
    for wrong in ({"members": 3}, {"members": 0}, {"rank": 2, "world_size": 2}, {"rank": 1}):
        with pytest.raises(LoaderError, match="expected"):
            Ranks.here(**wrong)
    with pytest.raises(LoaderError, match="replica < replicas"):
        Ranks(2, 2)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(LoaderError, match="expected whole numbers in RANK and WORLD_SIZE"):
        Ranks.here()
