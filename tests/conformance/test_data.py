"""Tensors with guards: every layout holds its content, and writing outside is noticed."""

from __future__ import annotations

import pytest
import torch

from phalanx.conformance.case_tensors import (
    DTYPES,
    SHAPES,
    dtype_of,
    place,
    same,
    tell_apart,
    values,
)


class Number:
    """Equal to nothing, and shown without its class."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "1"


class Numeral(Number): ...


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


@pytest.mark.parametrize(
    ("found", "expected", "says"),
    [
        ([1, 2, 3], [1, 5, 6], "2 instead of 5 at 1, 2 of 3 wrong"),
        ("a" * 500 + "b", "a" * 500 + "c", "'b' instead of 'c' at 500, 1 of 501 wrong"),
        (b"abc", b"abd", "99 instead of 100 at 2, 1 of 3 wrong"),
        ([1], [1, 2], "1 elements instead of 2: [1] instead of [1, 2]"),
        (Number(1), Numeral(1), "1 (Number) instead of 1 (Numeral)"),
        (Number(1), Number(2), "1 (Number), which is not equal to what it should be"),
        (3, 4, "3 instead of 4"),
        ("x" * 300, 4, f"'{'x' * 119}... instead of 4"),
    ],
)
def test_two_sides_never_read_the_same(found: object, expected: object, says: str) -> None:
    assert tell_apart(found, expected) == says


def test_what_is_close_enough_is_not_counted() -> None:
    found, expected = torch.tensor([1.0001, 3.0]), torch.tensor([1.0, 2.0])
    assert tell_apart(found, expected, close=True) == "3.0 instead of 2.0 at 1, 1 of 2 wrong"


def test_zeros_of_two_signs_differ_in_eight_bits() -> None:
    found = torch.tensor([1.0, -0.0]).to(torch.float8_e5m2)
    assert "-0.0 instead of 0.0 at 1" in tell_apart(found, found.float().abs().to(found.dtype))
