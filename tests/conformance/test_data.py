"""Tensors with guards: every layout holds its content, and writing outside is noticed."""

from __future__ import annotations

import pytest
import torch

from phalanx.conformance.data import (
    DTYPES,
    SHAPES,
    dtype_of,
    place,
    same,
    tell_apart,
    values,
)

LAYOUTS = ("contiguous", "view", "strided", "columns", "transposed", "requires-grad")


@pytest.mark.parametrize("shape", ["matrix", "vector", "empty", "zero-dim"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_placed_tensor_has_its_content(layout: str, shape: str) -> None:
    content = values(SHAPES[shape], torch.float32, rank=1, index=2, small=False)
    placed = place(content, layout, "cpu")
    assert same(placed.tensor, content)
    assert placed.is_guard_intact()


@pytest.mark.parametrize(
    ("layout", "shape", "contiguous"),
    [
        ("view", "matrix", True),
        ("strided", "matrix", False),
        ("columns", "matrix", False),
        ("transposed", "matrix", False),
        ("channels-last", "image", False),
        ("expanded", "matrix", False),
    ],
)
def test_layouts_are_what_they_say(layout: str, shape: str, contiguous: bool) -> None:
    content = values(SHAPES[shape], torch.float32, rank=0, index=0, small=False)
    tensor = place(content, layout, "cpu").tensor
    assert tensor.is_contiguous() == contiguous
    if layout == "channels-last":
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    if layout == "expanded":
        assert tensor.stride(0) == 0


@pytest.mark.parametrize("layout", ["view", "strided", "columns"])
def test_a_byte_outside_is_noticed(layout: str) -> None:
    placed = place(torch.zeros(4, 3), layout, "cpu")
    placed.tensor.fill_(5)
    assert placed.is_guard_intact()
    placed.buffer[0] = 5
    assert not placed.is_guard_intact()


@pytest.mark.parametrize("name", DTYPES)
def test_values_differ_by_rank_and_are_exact(name: str) -> None:
    dtype = dtype_of(name)
    one = values((12,), dtype, rank=0, index=0, small=False)
    other = values((12,), dtype, rank=1, index=0, small=False)
    assert one.dtype == dtype
    assert not same(one, other)
    assert same(one, one.clone())


def test_same_compares_dtype_shape_and_values() -> None:
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not same(torch.ones(2), torch.ones(1, 2))
    assert not same(torch.ones(2), torch.tensor([1.0, 1.001]))
    assert same(torch.ones(2), torch.tensor([1.0, 1.001]), close=True)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (torch.tensor([1.0, 5.0, 6.0]), "5.0 instead of 2.0 at 1, 2 of 3 wrong"),
        (torch.ones(2), "float32[2] instead of float32[3]"),
        (torch.ones(3, dtype=torch.int64), "int64[3] instead of float32[3]"),
        (None, "None instead of a tensor"),
    ],
)
def test_what_differs_is_told(found: object, says: str) -> None:
    assert tell_apart(found, torch.tensor([1.0, 2.0, 3.0])) == says
