"""The loader of one process. Skipped where torch is not installed."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import PATIENCE_S, Server, connected
from loaders import WITH_ID, all_ids, counts, ids, loader, torch, until
from rows import declare, filled, made, put

from rolldock import Batch, Client, errors
from rolldock._calls import taken
from rolldock.torch import BadRow, StreamingDataset


def test_every_row_is_given_once_and_acked(client: Client, partition: str) -> None:
    declare(client, partition)
    put(client, partition, groups=7)
    client.end_of_puts(partition)
    batches = list(loader(client, partition))
    assert [batch.rows for batch in batches] == [8, 8, 8, 4]
    assert all_ids(batches) == list(range(28))
    assert counts(client, partition) == (0, 0)


def test_the_end_waits_for_the_last_puts(queue: Client) -> None:
    declare(queue, "p")

    def rollout() -> None:
        for group in range(5):
            time.sleep(0.02)
            put(queue, "p", groups=1, first=4 * group)
        queue.end_of_puts("p")

    thread = threading.Thread(target=rollout)
    thread.start()
    assert sorted(all_ids(loader(queue, groups=1))) == list(range(20))
    thread.join()


def test_an_ended_loader_stays_at_its_end(queue: Client) -> None:
    declare(queue, "p")
    queue.end_of_puts("p")
    ended = loader(queue)
    assert list(ended) == []
    with pytest.raises(StopIteration):
        next(ended)
    ended.close()


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_prefetching_is_bounded(queue: Client, prefetch: int) -> None:
    filled(queue, groups=12)
    with loader(queue, groups=1, prefetch=prefetch) as loading:
        for number in range(3):
            next(loading)
            held = 4 * (1 + prefetch)
            until(lambda held=held: counts(queue)[1] == held)  # type: ignore[misc]
            time.sleep(0.05)
            assert counts(queue) == (48 - 4 * number, held)
    assert counts(queue) == (40, 0)


def test_the_rows_are_packed_before_they_are_asked_for(queue: Client) -> None:
    filled(queue, groups=3)
    with loader(queue, groups=1, prefetch=2) as loading:
        next(loading)
        stream = loading._stream
        assert stream is not None
        until(lambda: len(stream._reads._reads) == 2 and all(r.done() for r in stream._reads._reads.values()))


def test_a_batch_is_acked_when_the_next_one_is_asked_for(queue: Client) -> None:
    filled(queue, groups=2)
    loading = loader(queue, groups=1)
    next(loading)
    assert counts(queue)[0] == 8
    next(loading)
    assert counts(queue)[0] == 4
    loading.close()
    assert counts(queue) == (4, 0)


def test_a_batch_is_acked_by_hand(queue: Client) -> None:
    filled(queue, groups=3)
    with loader(queue, groups=1) as loading:
        first = next(loading)
        first.ack()
        assert counts(queue)[0] == 8
        first.ack()
        second = next(loading)
        # `first` is not the last batch any more.
        first.ack()
        assert counts(queue)[0] == 8
        second.ack()
    assert counts(queue) == (4, 0)


def test_an_exception_gives_the_batch_back(queue: Client) -> None:
    filled(queue, groups=3)
    with pytest.raises(ZeroDivisionError), loader(queue, groups=1) as loading:
        next(loading).rows / 0
    assert counts(queue) == (12, 0)


def test_a_second_loop_goes_on_where_the_first_left(queue: Client) -> None:
    filled(queue, groups=4, is_ended=True)
    loading = loader(queue, groups=1)
    for batch in loading:
        assert ids(batch) == [0, 1, 2, 3]
        break
    assert all_ids(loading) == list(range(4, 16))
    assert counts(queue) == (0, 0)


def test_a_dropped_loader_gives_its_rows_back(queue: Client) -> None:
    filled(queue, groups=4)
    loading = loader(queue, groups=1, prefetch=2)
    batch = next(loading)
    del loading, batch
    gc.collect()
    until(lambda: counts(queue) == (16, 0))


def test_a_loader_may_be_collected_in_its_own_thread(queue: Client) -> None:
    filled(queue, groups=4)
    is_dropped, is_collected = threading.Event(), threading.Event()
    calls = []

    def costs(lengths: Any) -> Any:
        # The thread that takes batches calls this: for the batch in use, then for a prefetched one.
        calls.append(threading.current_thread())
        if len(calls) == 2:
            assert is_dropped.wait(PATIENCE_S)
            gc.collect()
            is_collected.set()
        return lengths

    loading = loader(queue, groups=1, prefetch=1, balance=costs)
    next(loading)
    # Only the garbage collector can drop it now.
    loading.itself = loading  # type: ignore[attr-defined]
    gc.disable()
    try:
        del loading
        is_dropped.set()
        assert is_collected.wait(PATIENCE_S)
    finally:
        gc.enable()
    until(lambda: not calls[0].is_alive())
    until(lambda: counts(queue) == (16, 0))


def test_a_loader_gives_its_rows_back_at_the_exit_of_its_program(
    server: Server, partition: str, script: Callable[..., subprocess.Popen[str]]
) -> None:
    client = connected(server, "http")
    declare(client, partition)
    put(client, partition, groups=6)
    # The temporary folder has a finalizer, which another library may have made before the import, too.
    program = script(
        """
import os, sys, tempfile
folder = tempfile.TemporaryDirectory()
import rolldock
from rolldock.torch import StreamingDataLoader, StreamingDataset
client = rolldock.Client(os.environ["URL"], shared_memory=False)
loader = StreamingDataLoader(StreamingDataset(client, sys.argv[1], groups=1), prefetch=2)
next(loader)
""",
        partition,
    )
    _, said = program.communicate(timeout=PATIENCE_S)
    assert (program.returncode, said) == (0, "")
    assert counts(client, partition) == (24, 0)


def test_a_loader_that_waits_is_closed_at_once(client: Client, partition: str) -> None:
    declare(client, partition)
    put(client, partition, groups=1)
    loading = loader(client, partition, groups=1, prefetch=2)
    next(loading)
    begun = time.monotonic()
    loading.close()
    assert time.monotonic() - begun < PATIENCE_S / 2
    # A server may see late that the take is cancelled.
    until(lambda: counts(client, partition) == (4, 0))


def test_waits_have_a_limit_and_go_on(queue: Client) -> None:
    declare(queue, "p")
    loading = loader(queue, groups=1, wait_s=0.05)
    for _ in range(2):
        with pytest.raises(errors.Deadline, match="task=train: expected a batch within"):
            next(loading)
    put(queue, "p", groups=1)
    until(lambda: counts(queue)[1] == 4)
    assert ids(next(loading)) == [0, 1, 2, 3]
    loading.close()


def test_an_error_of_the_queue_is_raised_and_may_pass(queue: Client) -> None:
    loading = loader(queue)
    with pytest.raises(errors.UnknownPartition):
        next(loading)
    filled(queue, groups=2)
    assert ids(next(loading)) == list(range(8))
    loading.close()


def test_an_error_of_prefetching_comes_after_the_batches_before_it(
    queue: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(queue, groups=3, is_ended=True)
    calls = []

    def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise errors.Unreachable("the server is away")
        return taken(*arguments)

    monkeypatch.setattr("rolldock.torch.taking.taken", failing)
    loading = loader(queue, groups=1, prefetch=2)
    assert ids(next(loading)) == [0, 1, 2, 3]
    until(lambda: len(calls) == 3)
    assert ids(next(loading)) == [4, 5, 6, 7]
    with pytest.raises(errors.Unreachable):
        next(loading)
    assert all_ids(loading) == [8, 9, 10, 11]
    assert counts(queue) == (0, 0)


def test_an_ack_that_fails_is_an_error_and_repeats_no_row(
    queue: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(queue, groups=2, is_ended=True)
    loading = loader(queue, groups=1, prefetch=0)
    seen = ids(next(loading))

    def away(batch: Batch) -> None:
        # The request does not arrive, and the lease is dropped.
        batch.nack()
        raise errors.Unreachable("the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(Batch, "ack", away)
        with pytest.raises(errors.Unreachable):
            next(loading)
    assert seen + all_ids(loading) == list(range(8))
    assert counts(queue) == (0, 0)


def test_a_bad_row_is_an_error_and_its_batch_comes_again(queue: Client) -> None:
    declare(queue, "p")
    data = made(2)
    data["rollout_logprobs"] = [values[:0] for values in data["rollout_logprobs"]]
    queue.put("p", "bad", data)
    with pytest.raises(BadRow, match="group=bad"), loader(queue) as loading:
        next(loading)
    assert counts(queue) == (2, 0)


def test_leases_are_renewed_while_a_batch_is_used_and_while_it_waits(server: Server, partition: str) -> None:
    client = connected(server, "http")
    declare(client, partition, lease_ms=900)
    put(client, partition, groups=3)
    client.end_of_puts(partition)
    seen = []
    for batch in loader(client, partition, groups=1, prefetch=2):
        seen += ids(batch)
        time.sleep(1.2)
    assert seen == list(range(12))


def test_micro_batches_have_all_rows_within_the_budget(queue: Client) -> None:
    filled(queue, groups=6, is_ended=True)
    for batch in loader(queue, groups=3, micro_batch_tokens=40):
        assert len(batch) > 1
        assert all(micro.tokens <= 40 for micro in batch)
        assert len(ids(batch)) == batch.rows == batch.totals.rows == 12
        assert batch.tokens == batch.totals.tokens == sum(micro.tokens for micro in batch)
        assert batch.loss_tokens == batch.totals.loss_tokens
        assert batch.groups == sorted(batch.groups, key=lambda name: int(name.split("-")[1]))


def test_without_a_budget_there_is_one_micro_batch(queue: Client) -> None:
    filled(queue, groups=2, is_ended=True)
    (batch,) = loader(queue)
    (micro,) = batch
    assert micro.rows == batch.rows == 8
    assert micro.handles.tolist() == batch.handles.tolist()


@pytest.mark.parametrize("amount", [{"rows": 3}, {"tokens": 60}, {"groups": 3, "at_least": 2, "order": 7}])
def test_batches_are_those_of_the_take(queue: Client, amount: dict[str, int]) -> None:
    filled(queue, groups=5, is_ended=True)
    dataset = StreamingDataset(queue, "p", fields=WITH_ID, **amount)  # type: ignore[arg-type]
    batches = list(dataset)
    assert sorted(all_ids(batches)) == list(range(20))
    if "rows" in amount:
        assert [batch.rows for batch in batches] == [3] * 6 + [2]
    if "tokens" in amount:
        assert all(batch.tokens <= 60 or len(set(batch.groups)) == 1 for batch in batches)


def test_a_torch_loader_reads_the_dataset(queue: Client) -> None:
    filled(queue, groups=3, is_ended=True)
    dataset = StreamingDataset(queue, "p", groups=1, fields=WITH_ID)
    loading = torch.utils.data.DataLoader(dataset, batch_size=None)
    assert all_ids(loading) == list(range(12))


def test_rolldock_does_not_import_torch() -> None:
    program = "import rolldock, sys; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
