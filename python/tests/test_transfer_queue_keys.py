"""The calls of TransferQueue's interface by key, each in its form for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tq_support import call, data, ids, lists, shared, tensordict, torch  # isort: skip

import rolldock.transfer_queue as tq

__all__ = ["call", "shared"]

Caller = Callable[..., Any]


def test_fields_are_read_in_the_order_of_the_keys(call: Caller, partition: str) -> None:
    call("kv_batch_put", ["a", "b", "c"], partition, data(x=ids(0, 3)))
    assert lists(call("kv_batch_get", ["c", "a", "b"], partition)["x"]) == [[4, 5], [0, 1], [2, 3]]


def test_a_key_that_is_named_twice_is_read_twice(call: Caller, partition: str) -> None:
    call("kv_batch_put", ["a", "b"], partition, data(x=ids(0)))
    assert lists(call("kv_batch_get", ["b", "b"], partition)["x"]) == [[2, 3], [2, 3]]


def test_a_single_key_may_be_a_string(call: Caller, partition: str) -> None:
    call("kv_put", "word", partition, {"x": torch.tensor([1])})
    assert lists(call("kv_batch_get", "word", partition)["x"]) == [[1]]
    call("kv_clear", "word", partition)
    assert call("kv_list", partition) == {partition: {}}


def test_only_selected_fields_are_read(call: Caller, partition: str) -> None:
    call("kv_batch_put", ["a", "b"], partition, data(x=ids(0), y=ids(4), z=ids(8)))
    assert set(call("kv_batch_get", ["a"], partition, "y").keys()) == {"y"}
    assert set(call("kv_batch_get", ["a"], partition, ["z", "x"]).keys()) == {"x", "z"}


def test_metadata_of_a_put_read_its_fields(call: Caller, partition: str) -> None:
    meta = call("kv_batch_put", ["a", "b"], partition, data(x=ids(0), y=ids(4)), tags=[{"n": 1}, {"n": 2}])
    assert (meta.keys, meta.tags, meta.partition_id) == (["a", "b"], [{"n": 1}, {"n": 2}], partition)
    assert sorted(meta.fields) == ["x", "y"]
    read = call("kv_batch_get_by_meta", meta.select_keys(["b"]), "y")
    assert lists(read["y"]) == [[6, 7]]
    with pytest.raises(ValueError, match=r"select_fields \['z'\] not found"):
        call("kv_batch_get_by_meta", meta, ["x", "z"])


def test_without_a_selection_the_common_fields_are_read(call: Caller, partition: str) -> None:
    call("kv_put", "a", partition, {"x": torch.tensor([1]), "y": torch.tensor([2])})
    call("kv_put", "b", partition, {"x": torch.tensor([3])})
    assert set(call("kv_batch_get", ["a", "b"], partition).keys()) == {"x"}
    with pytest.raises(ValueError, match=r"expected \['y'\], found \['x'\]"):
        call("kv_batch_get", ["a", "b"], partition, ["y"])


def test_keys_without_a_common_field_are_an_error(call: Caller, partition: str) -> None:
    call("kv_put", "a", partition, {"x": torch.tensor([1])})
    call("kv_put", "b", partition, {"y": torch.tensor([1])})
    with pytest.raises(ValueError, match="not ready in all"):
        call("kv_batch_get", ["a", "b"], partition)


def test_a_key_with_tags_only_has_no_fields(call: Caller, partition: str) -> None:
    assert call("kv_put", "a", partition, tag={"n": 1}).fields == []
    with pytest.raises(ValueError, match="expected any field"):
        call("kv_batch_get", "a", partition)
    call("kv_put", "a", partition, {"x": torch.tensor([1])})
    assert call("kv_list", partition) == {partition: {"a": {"n": 1}}}


def test_a_tag_is_replaced_and_others_stay(call: Caller, partition: str) -> None:
    call("kv_batch_put", ["a", "b"], partition, tags=[{"n": 1, "s": "x"}, {"n": 2}])
    call("kv_batch_put", ["b", "a"], partition, data(x=ids(0)), tags=[{"n": 3}, {}])
    assert call("kv_list", partition)[partition] == {"a": {"n": 1, "s": "x"}, "b": {"n": 3}}


def test_a_field_grows_and_shrinks_when_it_is_put_again(call: Caller, partition: str) -> None:
    for length in (4, 9, 1, 0, 3):
        call("kv_put", "a", partition, {"x": torch.arange(length)})
        assert lists(call("kv_batch_get", "a", partition)["x"]) == [list(range(length))]


def test_a_put_of_one_field_leaves_the_others(call: Caller, partition: str) -> None:
    call("kv_batch_put", ["a", "b"], partition, data(x=ids(0), y=ids(4)))
    meta = call("kv_put", "b", partition, {"y": torch.tensor([9])})
    assert sorted(meta.fields) == ["x", "y"]
    read = call("kv_batch_get", ["a", "b"], partition)
    assert (lists(read["x"]), lists(read["y"])) == ([[0, 1], [2, 3]], [[4, 5], [9]])


def test_partitions_with_equal_keys_are_apart(call: Caller, partition: str) -> None:
    other = f"{partition}-other"
    call("kv_put", "a", partition, {"x": torch.tensor([1])})
    call("kv_put", "a", other, {"x": torch.tensor([2.5])})
    assert lists(call("kv_batch_get", "a", partition)["x"]) == [[1]]
    assert lists(call("kv_batch_get", "a", other)["x"]) == [[2.5]]
    call("clear_partition", partition)
    assert set(call("kv_list")) >= {other}
    assert partition not in call("kv_list")


def test_a_cleared_key_may_be_put_again_with_another_type(call: Caller, partition: str) -> None:
    call("kv_put", "a", partition, {"x": torch.tensor([1])}, {"n": 1})
    call("kv_clear", ["a"], partition)
    call("kv_put", "a", partition, {"x": "text"})
    assert call("kv_batch_get", "a", partition).get("x").tolist() == ["text"]
    assert call("kv_list", partition) == {partition: {"a": {}}}


def test_a_partition_that_does_not_exist(call: Caller, partition: str) -> None:
    assert call("kv_list", partition) == {}
    call("kv_clear", ["a"], partition)
    call("clear_partition", partition)
    assert call("get_consumption_status", "t", partition) == (None, None)
    assert call("get_production_status", ["x"], partition) == (None, None)
    assert not call("check_consumption_status", "t", partition)
    assert not call("check_production_status", ["x"], partition)
    assert not call("reset_consumption", partition)
    assert partition not in call("get_partition_list")


def test_keys_and_indexes_name_each_other(call: Caller, partition: str) -> None:
    call("kv_batch_put", ["a", "b"], partition, data(x=ids(0)))
    meta = call("kv_retrieve_meta", ["b", "absent", "a"], partition)
    assert meta.size == 2
    assert call("kv_retrieve_keys", meta.global_indexes, partition) == ["b", "a"]
    created = call("kv_retrieve_meta", "new", partition, create=True)
    assert call("kv_retrieve_keys", created.global_indexes[0], partition) == ["new"]
    without = call("get_meta", ["x"], 1, partition, mode="insert")
    with pytest.raises(RuntimeError, match="have no keys"):
        call("kv_retrieve_keys", without.global_indexes, partition)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("kv_retrieve_meta", ([1],), TypeError, "expected strings as keys, found int"),
        ("kv_retrieve_meta", ([],), ValueError, "at least one key"),
        ("kv_retrieve_keys", (["a"],), TypeError, "expected numbers as indexes, found str"),
        ("kv_retrieve_keys", ([],), ValueError, "at least one index"),
    ],
)
def test_keys_and_indexes_of_another_type_are_named(
    call: Caller, partition: str, name: str, arguments: tuple[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(name, *arguments, partition)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    "key",
    ["", " ", "ключ/ü\n\x00", "k" * 10_000, "a:b", '"', "💡"],
    ids=["empty", "space", "control", "long", "colon", "quote", "emoji"],
)
def test_any_string_is_a_key(key: str, partition: str) -> None:
    tq.kv_put(key, partition, {"x": torch.tensor([1])}, {"n": 1})
    assert tq.kv_list(partition) == {partition: {key: {"n": 1}}}
    assert lists(tq.kv_batch_get([key], partition)["x"]) == [[1]]


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    "name",
    ["a:int64", "a b", "ü", "a/b", "_", "object"],
    ids=["type", "space", "umlaut", "slash", "underscore", "word"],
)
def test_any_string_is_a_field(name: str, partition: str) -> None:
    tq.kv_put("a", partition, {name: torch.tensor([1]), f"{name}:object": "x"})
    read = tq.kv_batch_get("a", partition, name)
    assert {field: lists(read[field]) for field in [name]} == {name: [[1]]}
    assert tq.kv_batch_get("a", partition).get(f"{name}:object").tolist() == ["x"]


@pytest.mark.usefixtures("shared")
def test_ragged_bfloat16_keeps_every_bit(partition: str) -> None:
    rows = [torch.tensor([1.0078125, float("inf"), -0.0]), torch.tensor([3.0e38])]
    nested = torch.nested.as_nested_tensor([row.bfloat16() for row in rows], layout=torch.jagged)
    tq.kv_batch_put(["a", "b"], partition, tensordict.TensorDict({"x": nested}, batch_size=2))
    read = tq.kv_batch_get(["a", "b"], partition)["x"].unbind()
    assert [one.view(torch.int16).tolist() for one in read] == [
        row.bfloat16().view(torch.int16).tolist() for row in rows
    ]


@pytest.mark.usefixtures("shared")
def test_nans_keep_their_bits(partition: str) -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800001, -1], dtype=torch.int32)
    tq.kv_put("a", partition, {"x": bits.view(torch.float32)})
    assert torch.equal(tq.kv_batch_get("a", partition)["x"][0].view(torch.int32), bits)


@pytest.mark.usefixtures("shared")
def test_a_view_with_strides_is_stored_in_its_order(partition: str) -> None:
    whole = torch.arange(24).reshape(4, 6)
    tq.kv_batch_put(["a", "b", "c"], partition, data(x=whole.T[::2]))
    assert lists(tq.kv_batch_get(["a", "b", "c"], partition)["x"]) == whole.T[::2].tolist()


@pytest.mark.usefixtures("shared")
def test_a_tensor_with_gradients_is_stored_without_them(partition: str) -> None:
    tq.kv_put("a", partition, {"x": torch.ones(2, requires_grad=True)})
    read = tq.kv_batch_get("a", partition)["x"]
    assert not read.requires_grad
    assert lists(read) == [[1, 1]]


@pytest.mark.usefixtures("shared")
def test_a_put_of_objects_and_tensors_together(partition: str) -> None:
    batch = tensordict.TensorDict(
        {"x": ids(0), "s": tensordict.NonTensorStack({"a": [1]}, None), "n": torch.tensor([1.5, 2.5])},
        batch_size=2,
    )
    tq.kv_batch_put(["a", "b"], partition, batch)
    read = tq.kv_batch_get(["b", "a"], partition)
    assert (lists(read["x"]), read.get("s").tolist(), read["n"].tolist()) == (
        [[2, 3], [0, 1]],
        [None, {"a": [1]}],
        [2.5, 1.5],
    )


@pytest.mark.usefixtures("shared")
def test_an_object_that_cannot_be_pickled_leaves_no_key(partition: str) -> None:
    with pytest.raises(Exception, match="pickle"):
        tq.kv_put("a", partition, {"x": lambda: None})
    assert tq.kv_list(partition)[partition] == {}


@pytest.mark.usefixtures("shared")
def test_tensors_after_objects_are_another_type(partition: str) -> None:
    tq.kv_put("a", partition, {"x": "text"})
    with pytest.raises(ValueError, match=r"field=x: expected objects .* found torch.int64"):
        tq.kv_put("b", partition, {"x": torch.tensor([1])})


@pytest.mark.usefixtures("shared")
def test_a_nested_tensor_of_one_key_is_refused(partition: str) -> None:
    nested = torch.nested.as_nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    with pytest.raises(ValueError, match="field=x is a nested tensor"):
        tq.kv_put("a", partition, {"x": nested})


@pytest.mark.usefixtures("shared")
def test_an_empty_batch_is_refused_and_makes_no_key(partition: str) -> None:
    with pytest.raises(ValueError, match="at least one key"):
        tq.kv_batch_put([], partition, tensordict.TensorDict({}, batch_size=0))
    assert tq.kv_list(partition) == {}


@pytest.mark.usefixtures("shared")
def test_arguments_of_another_type_are_named(partition: str) -> None:
    with pytest.raises(TypeError, match="expected a TensorDict as `fields`, found dict"):
        tq.kv_batch_put(["a"], partition, {"x": ids(0, 1)})
    with pytest.raises(TypeError, match="expected strings as keys, found int"):
        tq.kv_put(7, partition, {"x": torch.tensor([1])})  # type: ignore[arg-type]
    assert tq.kv_list(partition) == {}


@pytest.mark.usefixtures("shared")
def test_fields_may_be_a_stack_of_samples(partition: str) -> None:
    samples = [tensordict.TensorDict({"x": torch.tensor([n, n])}, batch_size=[]) for n in range(3)]
    tq.kv_batch_put(["a", "b", "c"], partition, tensordict.lazy_stack(samples))
    assert lists(tq.kv_batch_get(["c", "a"], partition)["x"]) == [[2, 2], [0, 0]]


@pytest.mark.usefixtures("shared")
def test_many_keys_in_one_call(partition: str) -> None:
    keys = [f"key-{number}" for number in range(3_000)]
    tq.kv_batch_put(keys, partition, data(x=torch.arange(3_000)), tags=[{"n": n} for n in range(3_000)])
    picked = keys[::-7]
    assert tq.kv_batch_get(picked, partition)["x"].tolist() == [int(key[4:]) for key in picked]
    assert list(tq.kv_list(partition)[partition]) == keys
    tq.kv_clear(keys[1:], partition)
    assert tq.kv_list(partition) == {partition: {"key-0": {"n": 0}}}
