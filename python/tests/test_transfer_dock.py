"""The calls of a TransferDock, on queues of each kind."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from rolldock import Client, Ragged, errors
from rolldock.transfer_dock import Experience, TransferDock

CONSUMERS = {"reference": ["prompts"], "actor": ["prompts", "advantages"], "all": []}


def dock_of(client: Client, partition: str, **options: Any) -> TransferDock:
    return TransferDock(client, partition, CONSUMERS, rows=8, samples_per_prompt=2, **options)


def got(experience: Experience | None) -> Experience:
    assert experience is not None
    return experience


def values(indexes: list[int], factor: float = 1.0) -> Any:
    return np.array(indexes, dtype=np.float32) * factor


def test_columns_come_by_index_and_each_consumer_gets_all_once(client: Client, partition: str) -> None:
    dock = dock_of(client, partition)
    # The rows of a call may be of several prompts, in any order.
    first = [5, 0, 1, 4]
    prompts = Ragged(np.arange(6, dtype=np.int64), np.array([0, 1, 3, 3, 6], dtype=np.int32))
    dock.put_experience({"prompts": prompts}, first)
    experience = got(dock.get_experience("reference", prompts=2))
    assert experience.indexes.tolist() == [0, 1, 5, 4]
    assert [row.tolist() for row in experience.ragged("prompts")] == [[1, 2], [], [0], [3, 4, 5]]
    experience.ack()
    assert dock.get_experience("actor", samples=1) is None, "its advantages are missing"
    dock.put_experience({"advantages": values([4, 0], 0.5)}, [4, 0])
    with got(dock.get_experience("actor", ["advantages"], samples=2)) as experience:
        assert dict(zip(experience.indexes.tolist(), experience["advantages"].tolist(), strict=True)) == {
            0: 0.0,
            4: 2.0,
        }
        assert experience.names == ["advantages"]
    assert dock.get_experience("reference", samples=1) is None, "consumed"
    with pytest.raises(errors.ColumnExists):
        dock.put_experience({"advantages": values([4])}, [4])


def test_rows_stay_until_they_are_cleared(client: Client, partition: str) -> None:
    dock = dock_of(client, partition)
    for prompt in range(4):
        rows = [2 * prompt, 2 * prompt + 1]
        dock.put_experience({"prompts": values(rows), "advantages": values(rows)}, rows)
    for consumer in CONSUMERS:
        assert not dock.all_consumed(consumer)
        got(dock.get_experience(consumer, prompts=4)).ack()
        assert dock.all_consumed(consumer)
    assert client.status(partition)["rows"] == 8
    # Another process continues with the same dock.
    again = dock_of(client, partition)
    assert again.all_consumed("actor")
    again.clear()
    assert client.status(partition)["rows"] == 0
    again.put_experience({"prompts": values([7])}, [7])
    assert got(again.get_experience("reference", indexes=[7])).indexes.tolist() == [7]


def test_indexes_are_given_whole_in_their_order_or_not_at_all(client: Client, partition: str) -> None:
    dock = dock_of(client, partition)
    dock.put_experience({"prompts": values([3, 6])}, [3, 6])
    assert dock.get_experience("reference", indexes=[6, 2]) is None
    with pytest.raises(errors.Deadline):
        dock.get_experience("reference", indexes=[6, 2], wait_s=0.2)
    experience = got(dock.get_experience("reference", indexes=[6, 3]))
    assert (experience.indexes.tolist(), experience["prompts"].tolist()) == ([6, 3], [6.0, 3.0])
    experience.nack()
    got(dock.get_experience("reference", indexes=[3])).ack()
    with pytest.raises(errors.RowConsumed):
        dock.get_experience("reference", indexes=[3])

    def later() -> None:
        time.sleep(0.2)
        dock.put_experience({"prompts": values([2])}, [2])

    putting = threading.Thread(target=later)
    putting.start()
    assert got(dock.get_experience("reference", indexes=[2, 6], wait_s=30)).indexes.tolist() == [2, 6]
    putting.join()


def test_producers_of_one_row_at_the_same_time_lose_nothing(client: Client, partition: str) -> None:
    dock = dock_of(client, partition)
    names = ["prompts", "advantages", "rewards", "values"]
    failures: list[BaseException] = []

    def produce(name: str) -> None:
        try:
            for first in range(0, 8, 4):
                rows = list(range(first, first + 4))
                dock.put_experience({name: values(rows)}, rows)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=produce, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    experience = got(dock.get_experience("all", names, prompts=4, wait_s=30))
    for name in names:
        assert experience[name].tolist() == list(range(8))


def test_what_is_wrong_is_said(queue: Client) -> None:
    with pytest.raises(errors.BadRequest, match="samples_per_prompt=3, found rows=8"):
        TransferDock(queue, "odd", CONSUMERS, rows=8, samples_per_prompt=3)
    dock = dock_of(queue, "d")
    with pytest.raises(errors.DeclaredOtherwise):
        TransferDock(queue, "d", {"other": []}, rows=8, samples_per_prompt=2)
    with pytest.raises(errors.BadRequest, match="indexes below rows=8, found 8"):
        dock.put_experience({"prompts": values([8])}, [8])
    with pytest.raises(errors.BadRequest, match="each of rows=1, found 2"):
        dock.put_experience({"prompts": values([1])}, [1, 2])
    with pytest.raises(errors.Empty):
        dock.put_experience({"prompts": values([])}, [])
    with pytest.raises(errors.BadRequest, match="one of indexes, samples and prompts"):
        dock.get_experience("actor", samples=1, prompts=1)
    with pytest.raises(errors.BadRequest, match="without column=rewards"):
        dock.get_experience("actor", ["rewards"], samples=1)
    for call in (lambda: dock.get_experience("critic", samples=1), lambda: dock.all_consumed("critic")):
        with pytest.raises(errors.UnknownTask, match="reference, actor, all"):
            call()
    assert queue.status("d")["rows"] == 0
