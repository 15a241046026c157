"""Values of columns: types, shapes, and memory that is not copied."""

from __future__ import annotations

import gc
from array import array
from pathlib import Path
from typing import Any

import arro3.core
import numpy as np
import polars
import pyarrow as pa
import pytest

import rolldock
from rolldock import Client, Ragged, Table, errors


def kept(queue: Client, data: Any, name: str = "x") -> Any:
    """The values of a column after a put and a take."""
    return batch_of(queue, data)[name]


def batch_of(queue: Client, data: Any) -> rolldock.Batch:
    queue.put("p", "g", data)
    batch = queue.take("p", rows=1_000, wait_s=0)
    assert batch is not None
    return batch


NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
def test_numbers_keep_their_type(client: Client, partition: str, dtype: str) -> None:
    values = np.array([0, 1, 2, 100]).astype(dtype)
    client.declare(partition, columns={"x": dtype})
    client.put(partition, "g", {"x": values})
    batch = client.take(partition, rows=4)
    assert batch is not None
    assert batch["x"].dtype == values.dtype
    assert batch["x"].tolist() == values.tolist()
    assert batch.column("x").dtype == dtype


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 5), (3, 2, 1, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_rows_of_fixed_shape(client: Client, partition: str, shape: tuple[int, ...], dtype: str) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    sizes = "".join(f"[{size}]" for size in shape[1:])
    client.declare(partition, columns={"x": dtype + sizes})
    client.put(partition, "g", {"x": values})
    batch = client.take(partition, rows=3)
    assert batch is not None
    np.testing.assert_array_equal(batch["x"], values)
    assert batch.column("x").dtype == dtype + sizes


@pytest.mark.parametrize("dtype", NUMBERS)
def test_ragged_numbers(client: Client, partition: str, dtype: str) -> None:
    rows = [np.arange(length).astype(dtype) for length in (3, 0, 1)]
    client.declare(partition, columns={"x": f"list<{dtype}>"})
    client.put(partition, "g", {"x": rows})
    batch = client.take(partition, rows=3)
    assert batch is not None
    ragged = batch["x"]
    assert isinstance(ragged, Ragged)
    assert len(ragged) == 3
    assert ragged.values.dtype == np.dtype(dtype)
    assert ragged.lengths.tolist() == [3, 0, 1]
    for found, row in zip(ragged.to_list(), rows, strict=True):
        np.testing.assert_array_equal(found, row)


def test_lists_without_items_keep_their_type(queue: Client) -> None:
    empty = [np.zeros(0, np.uint32), np.zeros(0, np.uint32)]
    ragged = kept(queue, {"x": empty})
    assert ragged.lengths.tolist() == [0, 0]
    assert ragged.values.dtype == np.uint32
    padded, mask = ragged.padded()
    assert padded.shape == mask.shape == (2, 0)


def test_lists_are_padded(queue: Client) -> None:
    ragged = kept(queue, {"x": [np.array([1, 2, 3]), np.array([4])]})
    padded, mask = ragged.padded(fill=-1)
    assert padded.tolist() == [[1, 2, 3], [4, -1, -1]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]
    padded, mask = ragged.padded(length=4, side="left")
    assert padded.tolist() == [[0, 1, 2, 3], [0, 0, 0, 4]]
    assert mask.tolist() == [[False, True, True, True], [False, False, False, True]]
    with pytest.raises(ValueError, match="at most 2 items, found 3"):
        ragged.padded(length=2)


def test_items_of_lists_may_be_arrays(queue: Client) -> None:
    rows = [np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((1, 2), np.float32)]
    ragged = kept(queue, {"x": rows})
    np.testing.assert_array_equal(ragged[0], rows[0])
    padded, mask = ragged.padded()
    assert padded.shape == (2, 3, 2)
    assert mask.sum() == 4


def test_lists_of_lists(queue: Client) -> None:
    ragged = kept(queue, {"x": [[[1, 2], [3]], [], [[4, 5, 6]]]})
    assert [[inner.tolist() for inner in row] for row in ragged] == [[[1, 2], [3]], [], [[4, 5, 6]]]
    with pytest.raises(TypeError, match="lists of lists"):
        ragged.flat()


def test_lists_of_strings(queue: Client) -> None:
    ragged = kept(queue, {"x": [["a", "b"], [], ["c"]]})
    assert [row.tolist() for row in ragged] == [["a", "b"], [], ["c"]]


def test_ragged_is_put_again_as_it_was_taken(queue: Client) -> None:
    ragged = kept(queue, {"x": [np.array([1, 2]), np.array([3])]})
    queue.put("q", "g", {"x": ragged})
    again = queue.take("q", rows=2)
    assert again is not None
    assert [row.tolist() for row in again["x"]] == [[1, 2], [3]]


def test_offsets_of_int64_make_large_lists(queue: Client) -> None:
    batch = batch_of(queue, {"x": Ragged(np.arange(4), np.array([1, 3, 4], np.int64))})
    assert batch.column("x").dtype == "large_list<int64>"
    assert [row.tolist() for row in batch["x"]] == [[1, 2], [3]]


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 2, 9], [-1, 2, 3]])
def test_wrong_offsets_are_errors(queue: Client, offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="column=x: expected offsets that rise"):
        queue.put("p", "g", {"x": Ragged(np.arange(4), np.array(offsets, np.int32))})


def test_strings_and_bytes(queue: Client) -> None:
    batch = batch_of(queue, {"s": ["ä", None, ""], "b": [b"\0x", b"", None], "u": np.array(["p", "q", "r"])})
    assert batch["s"].tolist() == ["ä", None, ""]
    assert batch["b"].tolist() == [b"\0x", b"", None]
    assert batch["u"].tolist() == ["p", "q", "r"]
    assert batch["s"].dtype == object


def test_lists_of_numbers_are_columns(queue: Client) -> None:
    batch = batch_of(queue, {"i": [1, 2], "f": [0.5, 1.5], "b": [True, False]})
    dtypes = {name: batch.column(name).dtype for name in batch}
    assert dtypes == {"i": "int64", "f": "float64", "b": "bool"}


def test_nulls_are_masked(queue: Client) -> None:
    values = np.ma.MaskedArray(np.arange(4, dtype=np.int16), [False, True, False, True])
    found = kept(queue, {"x": values})
    assert isinstance(found, np.ma.MaskedArray)
    assert found.dtype == np.int16
    assert found.tolist() == [0, None, 2, None]


def test_null_items_of_fixed_lists_are_masked(queue: Client) -> None:
    pairs = pa.array([[1, None], None, [5, 6]], pa.list_(pa.int32(), 2))
    nested = pa.array([[[1, 2]], [[None, 4]], [[5, 6]]], pa.list_(pa.list_(pa.int32(), 2), 1))
    whole = pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int32(), 2))
    batch = batch_of(queue, {"pairs": pairs, "nested": nested, "whole": whole})
    assert batch["pairs"].tolist() == [[1, None], [None, None], [5, 6]]
    assert batch["nested"].tolist() == [[[1, 2]], [[None, 4]], [[5, 6]]]
    assert batch["whole"].tolist() == [[1, 2], [None, None], [5, 6]]


def test_fields_of_null_structs_are_null(queue: Client) -> None:
    fields = [pa.array([1, 2, None]), pa.array([[1], [2, 3], [4]]), pa.array(["p", "q", "r"])]
    structs = pa.StructArray.from_arrays(fields, ["i", "l", "s"], mask=pa.array([False, True, False]))
    found = kept(queue, {"x": structs})
    assert found["i"].tolist() == [1, None, None]
    assert found["s"].tolist() == ["p", None, "r"]
    assert found["l"].nulls.tolist() == [False, True, False]
    assert [row.tolist() for row in found["l"]] == [[1], [], [4]]


def test_items_of_null_lists_are_left_out(client: Client, partition: str) -> None:
    lists = Ragged(np.arange(4), np.array([0, 1, 3, 4], np.int32), np.array([False, True, False]))
    client.put(partition, "g", {"x": lists})
    batch = client.take(partition, rows=3)
    assert batch is not None
    found = batch.ragged("x")
    assert found.lengths.tolist() == [1, 0, 1]
    assert [row.tolist() for row in found] == [[0], [], [3]]
    padded, mask = found.padded(fill=-1)
    assert (padded.tolist(), mask.tolist()) == ([[0], [-1], [3]], [[True], [False], [True]])


def test_null_items_cannot_be_padded(queue: Client) -> None:
    found = kept(queue, {"x": pa.array([[1, None], [3]])})
    with pytest.raises(ValueError, match="expected a value in every item, found nulls=1"):
        found.padded()


def test_text_that_utf_8_cannot_encode_is_refused(queue: Client) -> None:
    with pytest.raises(ValueError, match=r"column=x: .*surrogates not allowed"):
        queue.put("p", "g", {"x": ["a", "\ud800"]})


def test_a_copy_through_dlpack_is_the_callers(queue: Client) -> None:
    column = batch_of(queue, {"x": np.arange(3)}).column("x")
    shared, copied = np.from_dlpack(column.values()), np.from_dlpack(column.values(), copy=True)
    assert np.may_share_memory(shared, np.asarray(column.values()))
    assert not np.may_share_memory(copied, shared)
    assert copied.tolist() == [0, 1, 2]


def test_masks_of_lists_are_kept(queue: Client) -> None:
    found = kept(queue, {"x": [np.ma.MaskedArray([1, 2], [False, True]), np.ma.MaskedArray([3], [False])]})
    assert [np.ma.MaskedArray(row).tolist() for row in found.to_list()] == [[1, None], [3]]


def test_memory_of_the_caller_is_copied(queue: Client) -> None:
    numbers, octets = array("i", [1, 2]), bytearray(b"ab")
    queue.put("p", "g", {"x": numbers, "o": octets})
    numbers[0] = octets[0] = 99
    batch = queue.take("p", rows=2)
    assert batch is not None
    assert (batch["x"].tolist(), batch["o"].tolist()) == ([1, 2], [97, 98])


def test_big_endian_and_strided_arrays_are_put(queue: Client) -> None:
    batch = batch_of(queue, {"be": np.arange(3).astype(">i4"), "strided": np.arange(6)[::2]})
    assert batch["be"].tolist() == [0, 1, 2]
    assert batch.column("be").dtype == "int32"
    assert batch["strided"].tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array(1), "single value"),
        (np.zeros(2, "datetime64[s]"), "typestr"),
        (np.zeros(2, complex), "typestr"),
        ([None, None], "tells the type"),
        ([[], []], "tells the type"),
        ([1, None], "a value in every row"),
        ([np.zeros(1, np.int32), np.zeros(1, np.int64)], "one dtype"),
        ([1, "a"], "found int and str"),
        ([1.5, b"x"], "found bytes and float"),
        ([-1, 2**63], "integers that fit"),
        ([2**64], "64 bits or less"),
        ([[1, 2**63], [-1]], "integers that fit"),
        ([{"a": 1}, {"b": 2}], "lists or arrays, found dict"),
        ([{1}, {2}], "lists or arrays, found set"),
        (object(), "an array or a list"),
        ("text", "an array or a list"),
    ],
)
def test_values_without_a_column_are_errors(queue: Client, values: Any, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"column=x: .*{reason}"):
        queue.put("p", "g", {"x": values})


def test_columns_have_one_length(queue: Client) -> None:
    with pytest.raises(ValueError, match="rows=2 in column=b, found 3"):
        queue.put("p", "g", {"a": [1, 2], "b": [1, 2, 3]})


@pytest.mark.parametrize("dtype", ["int", "list<>", "float32[0]", "list<int64", "[3]", "float32[2]x"])
def test_unknown_types_are_errors(queue: Client, dtype: str) -> None:
    with pytest.raises(ValueError, match="expected a type such as"):
        queue.declare("p", columns={"x": dtype})


def test_types_of_arrow_are_declared(queue: Client) -> None:
    queue.declare("p", columns={"x": pa.list_(pa.int8()), "t": pa.timestamp("ns")})
    with pytest.raises(errors.WrongType):
        queue.put("p", "g", {"x": [np.zeros(1, np.int16)]})


def test_taken_numbers_are_views_of_the_memory_of_the_queue(queue: Client) -> None:
    values = pa.array(np.arange(1_000))
    batch = batch_of(queue, pa.table({"x": values}))
    view = batch["x"]
    # The values are in the memory of the table that was put.
    assert view.ctypes.data == values.buffers()[1].address == batch.column("x").values().address
    assert not view.flags.writeable
    assert not view.flags.owndata
    assert queue.get("p", batch.handles)["x"].ctypes.data == view.ctypes.data


def test_taken_lists_are_views_of_the_memory_of_the_queue(queue: Client) -> None:
    lists = pa.array([[1, 2], [], [3]], pa.list_(pa.int64()))
    ragged = kept(queue, pa.table({"x": lists}))
    assert ragged.offsets.ctypes.data == lists.buffers()[1].address
    assert ragged.values.ctypes.data == lists.values.buffers()[1].address
    assert ragged[2].ctypes.data == ragged.values.ctypes.data + 2 * 8


def test_rows_in_shared_memory_are_not_copied(server: Any, partition: str) -> None:
    client = rolldock.Client(server.unix)
    client.put(partition, "g", {"x": np.arange(1 << 16)})
    batch = client.take(partition, rows=1 << 16)
    assert batch is not None
    address = batch["x"].ctypes.data
    maps = Path("/proc/self/maps").read_text().splitlines()
    (mapped,) = (line for line in maps if within(line.split()[0], address))
    assert "/memfd:" in mapped


def within(span: str, address: int) -> bool:
    start, end = (int(part, 16) for part in span.split("-"))
    return start <= address < end


def test_several_pieces_are_joined_once_and_their_parts_are_views(queue: Client) -> None:
    tables = [pa.table({"x": np.arange(group, group + 3)}) for group in range(3)]
    for number, table in enumerate(tables):
        queue.put("p", f"g{number}", table)
    batch = queue.take("p", groups=3)
    assert batch is not None
    assert batch["x"].tolist() == [0, 1, 2, 1, 2, 3, 2, 3, 4]
    assert batch["x"].ctypes.data == batch["x"].ctypes.data
    for piece, table in zip(batch.pieces(), tables, strict=True):
        assert piece["x"].ctypes.data == table["x"].chunk(0).buffers()[1].address


def test_values_outlive_their_batch(queue: Client) -> None:
    queue.put("p", "g", {"x": np.arange(1 << 16)})
    batch = queue.take("p", rows=1 << 16)
    assert batch is not None
    values = batch["x"]
    batch.ack()
    del batch
    gc.collect()
    queue.put("p", "h", {"x": np.zeros(1 << 16, np.int64)})
    assert values.sum() == sum(range(1 << 16))


def test_an_array_may_change_after_its_put(client: Client, partition: str) -> None:
    values = np.arange(4)
    client.put(partition, "g", {"x": values, "lists": Ragged(values, np.array([0, 1, 2, 3, 4], np.int32))})
    values[:] = 0
    batch = client.take(partition, rows=4)
    assert batch is not None
    assert batch["x"].tolist() == [0, 1, 2, 3]
    assert batch["lists"].values.tolist() == [0, 1, 2, 3]


TABLE = pa.table(
    {
        "i": pa.array([1, None, 3]),
        "l": pa.array([[1.5], None, []], pa.list_(pa.float32())),
        "s": ["x", "y", None],
        "b": [True, None, False],
        "d": pa.array(["p", "q", "p"]).dictionary_encode(),
        "st": [{"version": "1", "start": 0}] * 3,
        "t": pa.array([1, 2, 3], pa.timestamp("us")),
    }
)


def test_tables_of_arrow_come_back_as_they_were(client: Client, partition: str) -> None:
    client.put(partition, "g", TABLE)
    batch = client.take(partition, rows=3)
    assert batch is not None
    assert pa.table(batch).to_pydict() == TABLE.to_pydict()
    assert pa.record_batch(batch).num_rows == 3
    assert pa.schema(batch).names == TABLE.column_names


def test_columns_of_arrow_as_numpy(queue: Client) -> None:
    batch = batch_of(queue, TABLE)
    assert batch["i"].tolist() == [1, None, 3]
    assert batch["l"].nulls.tolist() == [False, True, False]
    assert batch["b"].tolist() == [True, None, False]
    assert batch["st"]["start"].tolist() == [0, 0, 0]
    for name in ("d", "t"):
        with pytest.raises(TypeError, match="has no form in NumPy; read the rows through Arrow"):
            batch[name]


def test_frames_of_polars_are_put_and_read(queue: Client) -> None:
    frame = polars.DataFrame({"x": [1, 2], "s": ["a", None], "l": [[1], [2, 3]]})
    batch = batch_of(queue, frame)
    assert polars.DataFrame(batch).equals(frame)
    assert batch["s"].tolist() == ["a", None]
    assert polars.Series(batch.column("x")).to_list() == [1, 2]


def test_arro3_reads_and_writes_rows(queue: Client) -> None:
    table = arro3.core.Table(pa.table({"x": [1, 2, 3]}))
    batch = batch_of(queue, table)
    assert arro3.core.Table(batch).num_rows == 3
    assert arro3.core.Array(batch.column("x")).to_pylist() == [1, 2, 3]


def test_arrow_arrays_are_columns(queue: Client) -> None:
    chunked = pa.chunked_array([[1], [2, 3]])
    batch = batch_of(
        queue, {"chunked": chunked, "lists": pa.array([[1], [], [2]]), "s": polars.Series(["a", "b", "c"])}
    )
    assert batch["chunked"].tolist() == [1, 2, 3]
    assert batch["lists"].lengths.tolist() == [1, 0, 1]
    assert batch["s"].tolist() == ["a", "b", "c"]


def test_what_is_no_table_is_refused(queue: Client) -> None:
    with pytest.raises(TypeError, match="a mapping of columns or rows of Arrow"):
        queue.put("p", "g", [1, 2])
    with pytest.raises(ValueError, match="expected rows"):
        queue.put("p", "g", pa.array([1, 2]))


def test_extension_types_are_kept(queue: Client) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 3, 4)))
    batch = batch_of(queue, pa.table({"x": tensors}))
    assert batch.column("x").dtype == "float64[12]"
    assert pa.table(batch)["x"].type == tensors.type


def test_a_table_describes_itself(queue: Client) -> None:
    batch = batch_of(queue, {"x": [1, 2], "l": [[1], [2]]})
    assert repr(batch) == "Batch(rows=2, columns={x: int64, l: list<int64>})"
    assert "x" in batch
    assert "y" not in batch
    assert list(batch) == ["x", "l"]
    assert repr(batch["l"]) == "Ragged(rows=2, items=2)"
    assert isinstance(queue.get("p", batch.handles), Table)
