"""The calls of a queue, embedded and served."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S, numbers, taken

import rolldock
from rolldock import Client, errors


def test_rows_are_put_taken_and_acked(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=8)
    handles = client.put(partition, "g", numbers(3))
    with taken(client.take(partition, rows=8)) as batch:
        assert len(batch) == 3
        assert batch.names == ["x"]
        assert batch["x"].tolist() == [0, 1, 2]
        assert batch.handles.tolist() == handles
        assert batch.groups == ["g"] * 3
        assert batch.policy_versions.tolist() == [0] * 3
    status = client.status(partition)
    assert status["rows"] == 0
    assert status["dispositions"]["acked"] == 3


def test_an_equal_declaration_changes_nothing_and_another_is_refused(client: Client, partition: str) -> None:
    columns = {"ids": "list<uint32>", "x": "float32[4]"}
    for _ in range(2):
        client.declare(partition, tasks={"train": ["x"]}, columns=columns, capacity_rows=8, lease_ms=5_000)
    with pytest.raises(errors.DeclaredOtherwise) as raised:
        client.declare(partition, tasks=["train"], capacity_rows=9)
    assert raised.value.code == "declared_otherwise"
    assert isinstance(raised.value, errors.ClientError)
    assert raised.value.details["name"] == partition


def test_an_exception_gives_the_rows_back(client: Client, partition: str) -> None:
    client.put(partition, "g", numbers(2))

    def train() -> None:
        with taken(client.take(partition, groups=1)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    with taken(client.take(partition, groups=1, wait_s=PATIENCE_S)) as batch:
        assert len(batch) == 2


def test_rows_are_given_back_by_hand(client: Client, partition: str) -> None:
    client.put(partition, "g", numbers(2))
    taken(client.take(partition, groups=1)).nack()
    batch = taken(client.take(partition, groups=1, wait_s=PATIENCE_S))
    batch.ack()
    with pytest.raises(errors.LeaseGone):
        batch.ack()
    assert client.status(partition)["rows"] == 0


def test_an_ack_in_the_block_is_the_only_one(client: Client, partition: str) -> None:
    client.put(partition, "g", numbers(2))
    with taken(client.take(partition, groups=1)) as batch:
        batch.ack()
    assert client.status(partition)["dispositions"]["acked"] == 2


def test_a_dropped_batch_gives_its_rows_back(client: Client, partition: str) -> None:
    client.put(partition, "g", numbers(2))
    batch = client.take(partition, groups=1)
    del batch
    assert len(taken(client.take(partition, groups=1, wait_s=PATIENCE_S))) == 2


def test_a_single_string_is_not_a_list_of_names(client: Client, partition: str) -> None:
    with pytest.raises(
        TypeError, match=r"expected a list of tasks, found a single string: write \['train'\]"
    ):
        client.declare(partition, tasks="train")
    client.put(partition, "g", numbers(1))
    with pytest.raises(TypeError, match="expected a list of columns"):
        client.take(partition, rows=1, columns="x")
    with pytest.raises(TypeError, match="expected a list of keys"):
        client.find(partition, "key")


def test_numbers_of_numpy_are_numbers(client: Client, partition: str) -> None:
    (row,) = client.put(partition, "g", numbers(1), policy_version=np.int64(1))
    client.announce(partition, np.int64(3))
    client.set_tags(partition, {row: {"epoch": np.int32(2)}})
    with taken(client.take(partition, rows=1)) as batch:
        assert batch.tags == [{"epoch": 2}]
    with pytest.raises(errors.BadRequest, match="counts no tokens"):
        client.take(partition, tokens=8)


def test_a_lease_that_is_not_renewed_expires(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=8, lease_ms=200)
    client.put(partition, "g", numbers(2))
    batch = taken(client.take(partition, groups=1))
    again = taken(client.take(partition, groups=1, wait_s=PATIENCE_S))
    assert again.handles.tolist() == batch.handles.tolist()
    for end in (batch.nack, batch.ack):
        with pytest.raises(errors.LeaseGone) as raised:
            end()
        assert isinstance(raised.value, errors.RetryableError)
    again.nack()


def test_a_lease_is_renewed_while_the_block_runs(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=8, lease_ms=1_000)
    client.put(partition, "g", numbers(2))
    with taken(client.take(partition, groups=1)) as batch:
        # No other take gets the rows within three terms of the lease.
        with pytest.raises(errors.Deadline):
            client.take(partition, groups=1, wait_s=3.0)
        assert not batch.is_lost
    assert client.status(partition)["dispositions"]["acked"] == 2


def test_a_lease_is_renewed_while_calls_end_at_once(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=8, lease_ms=600)
    client.put(partition, "g", numbers(2))
    with taken(client.take(partition, groups=1)) as batch:
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            client.status(partition)
            time.sleep(0.005)
        assert not batch.is_lost
    assert client.status(partition)["dispositions"]["acked"] == 2


def test_a_lease_that_was_held_for_a_while_is_renewed_at_once(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=8, lease_ms=1_500)
    for group in range(2):
        client.put(partition, f"g{group}", numbers(1, group))
    # The client learns the term of a lease in the first block.
    with taken(client.take(partition, groups=1)):
        time.sleep(0.3)
    late = taken(client.take(partition, groups=1))
    time.sleep(1.0)
    with late:
        with pytest.raises(errors.Deadline):
            client.take(partition, groups=1, wait_s=2.0)
        assert not late.is_lost


def test_a_lease_is_renewed_by_hand(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=8, lease_ms=60_000)
    client.put(partition, "g", numbers(1))
    batch = taken(client.take(partition, groups=1, holder="trainer-0"))
    time.sleep(0.3)

    def left_ms() -> int:
        of_all = {found["name"]: found for found in client.inspect()["partitions"]}
        (lease,) = of_all[partition]["leases"]
        assert lease["lease"] == batch.lease_id
        assert lease["holders"] == ["trainer-0"]
        left: int = lease["expires_in_ms"]
        return left

    assert left_ms() <= 59_700
    batch.renew()
    assert left_ms() > 59_700
    batch.ack()


def test_a_take_that_finds_nothing_in_time_is_a_timeout(client: Client, partition: str) -> None:
    client.declare(partition)
    with pytest.raises(TimeoutError) as raised:
        client.take(partition, rows=1, wait_s=0.1)
    assert isinstance(raised.value, errors.Deadline)
    assert isinstance(raised.value, errors.BackpressureError)
    with pytest.raises(errors.Deadline):
        client.take(partition, rows=1, wait_s=0)


def test_the_end_of_puts_ends_the_batches(client: Client, partition: str) -> None:
    for group in range(3):
        client.put(partition, f"g{group}", numbers(1, group))
    client.end_of_puts(partition)
    seen = []
    for batch in client.batches(partition, groups=2):
        with batch:
            seen += batch["x"].tolist()
    assert seen == [0, 1, 2]
    assert client.take(partition, groups=1, wait_s=0) is None
    with pytest.raises(errors.Closed) as raised:
        client.put(partition, "late", numbers(1))
    assert isinstance(raised.value, errors.CancelledError)


def test_a_waiting_take_gets_rows_that_are_put_later(client: Client, partition: str) -> None:
    client.declare(partition)
    timer = threading.Timer(0.2, lambda: client.put(partition, "g", numbers(4)))
    timer.start()
    with taken(client.take(partition, groups=1, wait_s=PATIENCE_S)) as batch:
        assert len(batch) == 4
    timer.join()


def test_a_full_partition_refuses(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=2, on_full="refuse")
    client.put(partition, "a", numbers(2))
    with pytest.raises(errors.Full) as raised:
        client.put(partition, "b", numbers(1))
    assert raised.value.details["capacity"] == 2
    with pytest.raises(errors.TooLarge):
        client.put(partition, "c", numbers(3))


def test_a_put_into_a_full_partition_waits_for_room(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=2)
    client.put(partition, "a", numbers(2))
    with pytest.raises(errors.Deadline):
        client.put(partition, "b", numbers(2), wait_s=0.1)
    put = threading.Thread(target=client.put, args=(partition, "b", numbers(2, 2)))
    put.start()
    taken(client.take(partition, groups=1, wait_s=PATIENCE_S)).ack()
    with taken(client.take(partition, groups=1, wait_s=PATIENCE_S)) as batch:
        assert batch["x"].tolist() == [2, 3]
    put.join(PATIENCE_S)
    assert not put.is_alive()


def test_a_full_partition_drops_its_oldest_group(client: Client, partition: str) -> None:
    client.declare(partition, capacity_rows=2, on_full="drop_oldest")
    for group in range(3):
        client.put(partition, f"g{group}", numbers(1, group))
    assert taken(client.take(partition, rows=8))["x"].tolist() == [1, 2]


def test_only_the_asked_columns_are_read(client: Client, partition: str) -> None:
    client.put(partition, "g", {"a": np.zeros(2), "b": np.ones(2), "c": ["x", "y"]})
    batch = taken(client.take(partition, rows=2, columns=["b"]))
    assert batch.names == ["b"]
    with pytest.raises(KeyError):
        batch["a"]


def test_takes_by_tokens_end_before_the_budget(client: Client, partition: str) -> None:
    client.declare(partition, columns={"ids": "list<int32>"}, length_columns=["ids"])
    for length in (3, 4, 5):
        client.put(partition, f"g{length}", {"ids": [np.zeros(length, np.int32)]})
    batch = taken(client.take(partition, tokens=8))
    assert batch["ids"].lengths.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("order", "expected"), [("fifo", [0, 1, 2]), ("freshest", [2, 1, 0]), ("priority", [1, 2, 0])]
)
def test_the_order_of_a_take(client: Client, partition: str, order: Any, expected: list[int]) -> None:
    for group, priority in enumerate([-1, 5, 3]):
        client.put(partition, f"g{group}", numbers(1, group), policy_version=group, priority=priority)
    found = []
    for _ in range(3):
        with taken(client.take(partition, groups=1, order=order)) as batch:
            found += batch["x"].tolist()
    assert found == expected


def test_a_random_order_has_a_seed(client: Client, partition: str) -> None:
    for group in range(8):
        client.put(partition, f"g{group}", numbers(1, group))
    with taken(client.take(partition, groups=8, order=np.int64(7))) as batch:
        assert sorted(batch["x"].tolist()) == list(range(8))


def test_stale_groups_are_skipped_delivered_or_dropped(client: Client, partition: str) -> None:
    client.put(partition, "old", numbers(1, 0), policy_version=1)
    client.put(partition, "new", numbers(1, 1), policy_version=3)
    client.announce(partition, 4)
    fresh = taken(client.take(partition, groups=8, max_staleness=1))
    assert fresh["x"].tolist() == [1]
    assert fresh.fresh_from == 3
    fresh.nack()
    delivered = taken(client.take(partition, groups=8, max_staleness=1, stale="deliver", wait_s=PATIENCE_S))
    assert delivered.policy_versions.tolist() == [1, 3]
    delivered.nack()
    taken(client.take(partition, groups=8, min_policy_version=3, stale="drop", wait_s=PATIENCE_S)).ack()
    assert client.status(partition)["dispositions"]["stale"] == 1


def test_ranks_share_a_batch(client: Client, partition: str) -> None:
    for group in range(4):
        client.put(partition, f"g{group}", numbers(1, group))
    seen = []
    for rank in range(2):
        share = rolldock.Share(rank, 2, equal_counts=True)
        with taken(client.take(partition, groups=4, share=share)) as batch:
            assert len(batch) == 2
            seen += batch["x"].tolist()
    assert sorted(seen) == [0, 1, 2, 3]


def test_members_of_a_rank_get_the_same_rows(client: Client, partition: str) -> None:
    client.put(partition, "g", numbers(2))
    members = [rolldock.Share(0, 1, member=member, members=2) for member in range(2)]
    first, second = (taken(client.take(partition, groups=1, share=share)) for share in members)
    assert first["x"].tolist() == second["x"].tolist()
    first.ack()
    assert client.status(partition)["rows"] == 2
    second.ack()
    assert client.status(partition)["rows"] == 0


def test_given_rows_are_taken(client: Client, partition: str) -> None:
    handles = client.put(partition, "g", numbers(4))
    with taken(client.take(partition, only=np.array(handles[1:3], np.uint64))) as batch:
        assert batch["x"].tolist() == [1, 2]


def test_written_columns_make_rows_ready(client: Client, partition: str) -> None:
    client.declare(partition, tasks={"ref": [], "train": ["value"]}, columns={"value": "float32"})
    handles = client.put(partition, "g", numbers(2))
    with pytest.raises(errors.Deadline):
        client.take(partition, groups=1, wait_s=0)
    with taken(client.take(partition, task="ref", groups=1)) as batch:
        batch.write({"value": np.array([0.5, 1.5], np.float32)})
    value = np.array([2.5, 3.5], np.float32)
    with pytest.raises(errors.ColumnExists):
        client.write(partition, handles, {"value": value})
    client.write(partition, np.array(handles, np.uint64), {"value": value}, overwrite=True)
    with taken(client.take(partition, groups=1)) as batch:
        assert batch["value"].tolist() == [2.5, 3.5]


def test_another_type_is_an_error_and_never_a_cast(client: Client, partition: str) -> None:
    client.put(partition, "a", numbers(1))
    with pytest.raises(errors.WrongType) as raised:
        client.put(partition, "b", {"x": np.zeros(1, np.int32)})
    assert raised.value.details["column"] == "x"


def test_rows_have_keys_and_tags(client: Client, partition: str) -> None:
    handles = client.put(partition, "g", numbers(2), keys=["a", "b"], tags=[{"turn": 1}, None])
    found = client.find(partition, ["b", "a"])
    assert {row.key: row.handle for row in found} == {"a": handles[0], "b": handles[1]}
    assert [row.tags for row in client.find(partition)] == [{"turn": 1}, None]
    client.set_tags(partition, {handles[1]: ["done"]})
    with taken(client.take(partition, rows=2)) as batch:
        assert batch.keys == ["a", "b"]
        assert batch.tags == [{"turn": 1}, ["done"]]
        with pytest.raises(errors.KeyExists):
            client.put(partition, "h", numbers(1), keys=["a"])
    with pytest.raises(errors.UnknownKey):
        client.find(partition, ["a"])


def test_rows_are_read_without_a_lease(client: Client, partition: str) -> None:
    handles = client.put(partition, "g", {"x": np.arange(3), "s": ["p", "q", "r"]})
    table = client.get(partition, [handles[2], handles[0]], columns=["x"])
    assert table.names == ["x"]
    assert table["x"].tolist() == [2, 0]
    client.clear(partition, handles)
    with pytest.raises(errors.StaleHandle):
        client.get(partition, handles)


def test_rows_are_cleared_and_consumption_is_reset(client: Client, partition: str) -> None:
    client.declare(partition, tasks=["a", "b"])
    client.put(partition, "g", numbers(3))
    taken(client.take(partition, task="a", groups=1)).ack()
    assert client.reset(partition, "a") == 3
    taken(client.take(partition, task="a", groups=1)).ack()
    assert client.clear_all(partition) == 3
    assert client.status(partition)["rows"] == 0


def test_samples_with_several_puts(client: Client, partition: str) -> None:
    client.declare(partition, group_size=2)
    client.put(partition, "g", numbers(1), sample="s0")
    client.put(partition, "g", numbers(1, 1), sample="s0", sample_is_last=True)
    client.put(partition, "g", numbers(1, 2), sample="s1")
    with pytest.raises(errors.Deadline):
        client.take(partition, groups=1, wait_s=0)
    client.end_sample(partition, "s1")
    taken(client.take(partition, groups=1)).ack()
    client.put(partition, "h", numbers(1), sample="s2", sample_is_last=True)
    (closed,) = client.close_groups(partition, older_than_s=0, unfinished="give")
    assert (closed["group"], closed["samples"], closed["samples_whole"]) == ("h", 2, 1)
    assert len(taken(client.take(partition, groups=1))) == 1


def test_a_repeated_put_changes_nothing(client: Client, partition: str) -> None:
    first = client.put(partition, "g", numbers(2), token="t")
    assert client.put(partition, "g", numbers(2), token="t") == first
    assert client.status(partition)["rows"] == 2


def test_a_change_of_the_counts_is_awaited(client: Client, partition: str) -> None:
    client.declare(partition)
    before = client.status(partition)
    timer = threading.Timer(0.2, lambda: client.put(partition, "g", numbers(1)))
    timer.start()
    # The put may change the counts more than once.
    counts = before
    while counts["rows"] == 0:
        counts = client.status(partition, after=counts["revision"])
    timer.join()
    assert counts["revision"] > before["revision"]
    assert partition in client.partitions()


def test_wrong_options_are_errors(client: Client, partition: str) -> None:
    client.put(partition, "g", numbers(1))
    with pytest.raises(ValueError, match="one of rows, groups, tokens and only"):
        client.take(partition)
    with pytest.raises(ValueError, match="unknown field `group`"):
        client.take(partition, group=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="0 seconds or more"):
        client.take(partition, rows=1, wait_s=-1)
    with pytest.raises(errors.UnknownTask):
        client.take(partition, task="other", rows=1)
    with pytest.raises(errors.UnknownPartition):
        client.status(partition + "-other")
    with pytest.raises(errors.Empty):
        client.put(partition, "h", {"x": np.zeros(0)})
