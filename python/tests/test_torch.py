"""Tensors of torch. Skipped where torch is not installed."""

from __future__ import annotations

import numpy as np
import pytest

from rolldock import Client

torch = pytest.importorskip("torch")


def test_tensors_share_the_memory_of_the_queue(queue: Client) -> None:
    queue.put(
        "p",
        "g",
        {"x": torch.arange(6, dtype=torch.float32).reshape(3, 2), "b": torch.tensor([True, False, True])},
    )
    batch = queue.take("p", rows=3)
    assert batch is not None
    tensor = batch.torch("x")
    assert tensor.shape == (3, 2)
    assert tensor.dtype == torch.float32
    assert tensor.data_ptr() == batch.column("x").values().address
    assert tensor.sum() == 15
    assert batch.torch("b").tolist() == [True, False, True]


def test_lists_of_tensors_have_one_dtype(queue: Client) -> None:
    with pytest.raises(TypeError, match=r"one dtype, found torch\.float64 and torch\.int64"):
        queue.put("p", "g", {"x": [torch.tensor([2**53 + 1]), torch.tensor([0.5], dtype=torch.float64)]})


def test_a_nested_tensor_with_gaps_has_only_its_own_values(queue: Client) -> None:
    base = torch.arange(12).reshape(3, 4)
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([2, 1, 2])
    gaps = torch.nested.narrow(base, 1, starts, lengths, layout=torch.jagged)
    queue.put("p", "g", {"x": gaps})
    batch = queue.take("p", rows=3)
    assert batch is not None
    assert [row.tolist() for row in batch["x"].to_list()] == [[0, 1], [5], [10, 11]]
    turned = torch.nested.as_nested_tensor(
        [torch.zeros(2, 3), torch.zeros(1, 3)], layout=torch.jagged
    ).transpose(1, 2)
    with pytest.raises(ValueError, match=r"x.*ragged dimension 1, found 2"):
        queue.put("p", "g2", {"x": turned})


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16"]
)
def test_types_are_kept(queue: Client, dtype: str) -> None:
    values = torch.arange(4).to(getattr(torch, dtype))
    queue.declare("p", columns={"x": dtype, "y": f"{dtype}[1]", "l": f"list<{dtype}>"})
    lists = torch.nested.as_nested_tensor([values[:1], values[:0], values, values[:2]], layout=torch.jagged)
    queue.put("p", "g", {"x": values, "y": values[:, None], "l": lists})
    batch = queue.take("p", rows=4)
    assert batch is not None
    assert batch.torch("x").dtype == values.dtype
    assert torch.equal(batch.torch("x"), values)
    assert torch.equal(batch.torch("y"), values[:, None])
    jagged = batch.torch("l")
    assert jagged.layout == torch.jagged
    assert jagged.dtype == values.dtype
    assert [len(row) for row in jagged.unbind()] == [1, 0, 4, 2]
    padded, mask = batch.padded_torch("l", fill=1)
    assert padded.dtype == values.dtype
    assert padded[0].tolist() == [0, 1, 1, 1]
    assert mask.sum(1).tolist() == [1, 0, 4, 2]


def test_the_layout_of_lists_does_not_depend_on_their_lengths(queue: Client) -> None:
    queue.put("p", "g", {"l": [np.arange(2), np.arange(2)]})
    batch = queue.take("p", rows=2)
    assert batch is not None
    assert batch.torch("l").layout == torch.jagged


def test_tensors_outlive_their_batch(queue: Client) -> None:
    queue.put("p", "g", {"x": torch.arange(1 << 16)})
    batch = queue.take("p", rows=1 << 16)
    assert batch is not None
    tensor = batch.torch("x")
    batch.ack()
    del batch
    queue.put("p", "h", {"x": torch.zeros(1 << 16, dtype=torch.int64)})
    assert tensor.sum() == sum(range(1 << 16))


def test_lists_of_tensors_are_put(queue: Client) -> None:
    queue.put("p", "g", {"l": [torch.arange(3), torch.arange(0), torch.arange(1)]})
    batch = queue.take("p", rows=3)
    assert batch is not None
    assert batch["l"].lengths.tolist() == [3, 0, 1]


def test_columns_without_a_form_in_torch_are_errors(queue: Client) -> None:
    queue.put("p", "g", {"s": ["a"], "n": np.ma.MaskedArray([1], [True]), "ll": [[["a"]]]})
    batch = queue.take("p", rows=1)
    assert batch is not None
    for name in ("s", "ll"):
        with pytest.raises(TypeError, match="no form in torch"):
            batch.torch(name)
    with pytest.raises(ValueError, match="found nulls"):
        batch.torch("n")


def test_tensordicts_are_put(queue: Client) -> None:
    tensordict = pytest.importorskip("tensordict")
    lists = torch.nested.as_nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    data = tensordict.TensorDict({"x": torch.ones(2, 4), "l": lists}, batch_size=2)
    queue.put("p", "g", data)
    batch = queue.take("p", rows=2)
    assert batch is not None
    assert batch.torch("x").shape == (2, 4)
    assert batch.ragged("l").lengths.tolist() == [2, 3]
