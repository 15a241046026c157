"""Metadata of batches, without a server."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tq_support import data, ids, tensordict, torch  # isort: skip

import rolldock.transfer_queue as tq

RAGGED = torch.nested.as_nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)


def batch(size: int = 4, partition: str = "p", **info: Any) -> tq.BatchMeta:
    """Samples with a ragged field `x`, whose lengths are their indexes, and a dense field `y`."""
    shapes = [(index,) for index in range(size)]
    schema = {
        "x": {"dtype": torch.int64, "shape": None, "is_nested": True, "per_sample_shapes": shapes},
        "y": {"dtype": torch.float32, "shape": (2,), "is_nested": False},
    }
    notes = [{"n": index} for index in range(size)]
    return tq.BatchMeta(list(range(size)), [partition] * size, schema, np.ones(size), info, notes)


def described(meta: tq.BatchMeta) -> list[tuple[Any, ...]]:
    """Each sample: its index, partition, status, length and note."""
    shapes = meta.get_shapes("x")
    return [
        (one.global_index, one.partition_id, one.production_status, shapes[row], one.custom_meta["n"])
        for row, one in enumerate(meta.samples)
    ]


def samples_of(places: list[int]) -> list[tuple[Any, ...]]:
    return [(place, "p", 1, (place,), place) for place in places]


@pytest.mark.parametrize(
    ("change", "places"),
    [
        (lambda meta: meta.select_samples([2, 0]), [2, 0]),
        (lambda meta: meta.select_samples([]), []),
        (lambda meta: meta.select_samples([1, 1]), [1, 1]),
        (lambda meta: meta[-1], [3]),
        (lambda meta: meta[1:3], [1, 2]),
        (lambda meta: meta[::-1], [3, 2, 1, 0]),
        (lambda meta: meta.copy(), [0, 1, 2, 3]),
        (lambda meta: pickle.loads(pickle.dumps(meta)), [0, 1, 2, 3]),
        (lambda meta: tq.BatchMeta.concat(meta.chunk(3)), [0, 1, 2, 3]),
        (lambda meta: tq.BatchMeta.concat([meta[2], tq.BatchMeta.empty(), meta[0]]), [2, 0]),
        (lambda meta: meta.select_fields(["x", "absent"]), [0, 1, 2, 3]),
        (lambda meta: meta.union(tq.BatchMeta.empty()), [0, 1, 2, 3]),
    ],
)
def test_all_that_is_known_of_a_sample_stays_together(
    change: Callable[[tq.BatchMeta], tq.BatchMeta], places: list[int]
) -> None:
    assert described(change(batch())) == samples_of(places)


def test_an_order_is_that_of_the_samples() -> None:
    meta = batch()
    meta.reorder([3, 1, 0, 2])
    assert described(meta) == samples_of([3, 1, 0, 2])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda meta: meta.reorder([0, 1]), ValueError),
        (lambda meta: meta.reorder([0, 1, 2, 2]), ValueError),
        (lambda meta: meta.select_samples([4]), ValueError),
        (lambda meta: meta.select_samples([-1]), ValueError),
        (lambda meta: meta.chunk(0), ValueError),
        (lambda meta: meta[4], IndexError),
        (lambda meta: meta["x"], TypeError),
        (lambda meta: meta.get_shapes("z"), KeyError),
        (lambda meta: meta.get_dtypes("z"), KeyError),
        (lambda meta: meta.update_custom_meta([{}]), ValueError),
        (lambda meta: meta.add_fields(data(z=ids(0, 3))), ValueError),
        (lambda meta: meta.union(batch(3)), ValueError),
        (lambda meta: meta.union(batch(4, "q")), ValueError),
        (lambda meta: tq.BatchMeta.concat([meta, meta.select_fields(["x"])]), ValueError),
        (lambda meta: tq.BatchMeta.concat([meta, batch(2, a=1), batch(2, a=2)]), ValueError),
        (lambda meta: meta.samples[4], IndexError),
    ],
)
def test_a_change_that_is_not_possible_is_refused_and_changes_nothing(
    change: Callable[[tq.BatchMeta], Any], error: type[Exception]
) -> None:
    meta = batch()
    with pytest.raises(error, match=r"."):
        change(meta)
    assert described(meta) == samples_of([0, 1, 2, 3])


@pytest.mark.parametrize(
    "lengths", [{"partition_ids": ["p"]}, {"production_status": [1]}, {"custom_meta": [{}]}]
)
def test_lengths_that_differ_are_named(lengths: dict[str, Any]) -> None:
    arguments = {"global_indexes": [1, 2], "partition_ids": ["p", "p"], **lengths}
    with pytest.raises(ValueError, match=f"expected {next(iter(lengths))} of 2 samples, found length 1"):
        tq.BatchMeta(**arguments)


@pytest.mark.parametrize(("size", "chunks"), [(10, 3), (3, 3), (2, 4), (0, 2), (7, 1)])
def test_chunks_are_of_about_equal_size(size: int, chunks: int) -> None:
    sizes = [part.size for part in batch(size).chunk(chunks)]
    assert len(sizes) == chunks
    assert sum(sizes) == size
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_batch_of_several_partitions_is_split_by_them() -> None:
    joined = tq.BatchMeta.concat([batch(2), batch(2, "q"), batch(1)])
    assert [(part.partition_ids, part.size) for part in joined.chunk_by_partition()] == [
        (["p"] * 3, 3),
        (["q"] * 2, 2),
    ]


def test_a_union_has_the_fields_and_notes_of_both() -> None:
    one, other = batch(2, a=1), batch(2, b=2).select_fields(["y"])
    other.add_fields(data(z=ids(0)))
    other.update_custom_meta([{"m": 5}, {"n": 6}])
    other.production_status[1] = 0
    both = one.union(other)
    assert both.field_names == ["x", "y", "z"]
    assert both.extra_info == {"a": 1, "b": 2}
    assert both.custom_meta == [{"n": 0, "m": 5}, {"n": 6}]
    assert both.production_status.tolist() == [1, 0]
    assert not both.is_ready
    # The batches stay as they were.
    assert (one.extra_info, one.custom_meta, one.field_names) == ({"a": 1}, [{"n": 0}, {"n": 1}], ["x", "y"])


def test_joined_dense_fields_of_different_shapes_become_ragged() -> None:
    parts = [tq.BatchMeta([n], ["p"]).add_fields(data(x=torch.zeros(1, 2 + n))) for n in range(2)]
    joined = tq.BatchMeta.concat(parts)
    assert joined.field_schema["x"]["is_nested"]
    assert joined.get_shapes("x") == [(2,), (3,)]
    same = tq.BatchMeta.concat([parts[0], parts[0]])
    assert not same.field_schema["x"]["is_nested"]
    assert same.get_shapes("x") == [(2,), (2,)]


def test_types_that_differ_are_joined_only_without_validation() -> None:
    parts = [
        tq.BatchMeta([n], ["p"]).add_fields(data(x=x)) for n, x in enumerate([ids(0, 1), torch.ones(1, 2)])
    ]
    with pytest.raises(ValueError, match=r"dtype mismatch of field=x: found torch.int64 and torch.float32"):
        tq.BatchMeta.concat(parts)
    assert tq.BatchMeta.concat(parts, validate=False).size == 2


@pytest.mark.parametrize(
    ("value", "dtype", "shapes"),
    [
        (torch.zeros(2, 3, 4), torch.float32, [(3, 4), (3, 4)]),
        (torch.zeros(2, dtype=torch.int64), torch.int64, [(), ()]),
        (RAGGED, torch.float32, [(1,), (2,)]),
        (tensordict.NonTensorStack("a", "b"), None, [None, None]),
    ],
)
def test_added_fields_are_described(value: Any, dtype: Any, shapes: list[Any]) -> None:
    meta = tq.BatchMeta([5, 6], ["p", "p"])
    assert not meta.is_ready
    assert meta.add_fields(tensordict.TensorDict({"v": value}, batch_size=2)) is meta
    assert (meta.get_dtypes("v"), meta.get_shapes("v"), meta.is_ready) == ([dtype] * 2, shapes, True)
    assert [tuple(one.fields["v"]["shape"] or ()) for one in meta.samples] == [
        shape or () for shape in shapes
    ]


def test_copies_share_nothing() -> None:
    meta = batch(2, a=[1])
    other = meta.copy()
    other.extra_info["a"].append(2)
    other.custom_meta[0]["n"] = 9
    other.production_status[0] = 0
    other.field_schema["x"]["dtype"] = None
    other.get_all_extra_info()["a"].append(3)
    assert (meta.extra_info, meta.custom_meta[0], meta.is_ready) == ({"a": [1]}, {"n": 0}, True)
    assert meta.get_dtypes("x") == [torch.int64] * 2
    assert other.extra_info == {"a": [1, 2]}


def test_notes_of_a_batch() -> None:
    meta = batch(1)
    meta.set_extra_info("a", 1)
    meta.update_extra_info({"b": torch.ones(2)})
    assert meta.has_extra_info("a")
    assert meta.get_extra_info("c", 7) == 7
    joined = tq.BatchMeta.concat([meta, meta])
    assert joined.get_extra_info("b").tolist() == [1, 1]
    assert meta.remove_extra_info("a") == 1
    assert meta.remove_extra_info("a") is None
    meta.clear_extra_info()
    meta.clear_custom_meta()
    assert (meta.extra_info, meta.custom_meta) == ({}, [{}])


def test_views_of_samples_are_read_only() -> None:
    sample = batch(1).samples[0]
    with pytest.raises(TypeError):
        sample.custom_meta["n"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        sample.fields["x"]["dtype"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        sample.global_index = 1  # type: ignore[misc]


def by_key(keys: str = "abcd", **options: Any) -> tq.KVBatchMeta:
    tags = [{"n": place} for place in range(len(keys))]
    return tq.KVBatchMeta(list(keys), tags, **{"partition_id": "p", "fields": ["x"], **options})


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda meta: meta.select_keys(["c", "a"]), "ca"),
        (lambda meta: meta.select_keys([]), ""),
        (lambda meta: tq.KVBatchMeta.concat(meta.chunk(3)), "abcd"),
        (lambda meta: tq.KVBatchMeta.concat([meta.chunk(2)[1], tq.KVBatchMeta()]), "cd"),
        (lambda meta: meta.reorder([3, 2, 1, 0]) or meta, "dcba"),
        (copy.deepcopy, "abcd"),
    ],
)
def test_keys_and_tags_stay_together(change: Callable[[tq.KVBatchMeta], tq.KVBatchMeta], keys: str) -> None:
    changed = change(by_key())
    assert list(zip(changed.keys, changed.tags, strict=True)) == [(key, {"n": ord(key) - 97}) for key in keys]
    assert (changed.size, len(changed), changed.partition_id, changed.fields) == (
        len(keys),
        len(keys),
        "p",
        ["x"],
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda: tq.KVBatchMeta(["a"], []), ValueError, "same length: found 1 and 0"),
        (lambda: by_key("aa"), ValueError, "duplicated keys"),
        (lambda: by_key(fields=["x", "x"]), ValueError, "duplicated fields"),
        (lambda: by_key().select_keys(["a", "a"]), ValueError, "duplicate keys"),
        (lambda: by_key().select_keys(["a", "z"]), RuntimeError, r"Keys \['z'\] not found"),
        (lambda: by_key().reorder([0, 1]), ValueError, "length 2 .* batch size 4"),
        (lambda: by_key().reorder([0, 1, 1, 2]), ValueError, "duplicate indexes"),
        (lambda: by_key().reorder([0, 1, 2, 4]), ValueError, r"range \[0, 4\)"),
        (lambda: tq.KVBatchMeta.concat([by_key(), by_key("e", fields=["y"])]), ValueError, "Field names"),
        (lambda: tq.KVBatchMeta.concat([by_key(), by_key("e", partition_id="q")]), ValueError, "Partition"),
        (lambda: tq.KVBatchMeta.concat([by_key(), by_key()]), ValueError, "duplicated keys"),
        (
            lambda: tq.KVBatchMeta.concat([by_key(extra_info={"a": 1}), by_key("e", extra_info={"a": 2})]),
            ValueError,
            "extra_info key='a' has conflicting values: found 1 and 2",
        ),
    ],
)
def test_batches_by_key_that_are_not_valid(
    change: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        change()


def test_a_batch_by_key_has_copies_of_its_tags() -> None:
    tags = [{"n": [1]}]
    meta = tq.KVBatchMeta(["a"], tags)
    tags[0]["n"].append(2)
    assert meta.tags == [{"n": [1]}]
