"""The reference itself, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from phalanx.conformance import reference

ONE, TWO = torch.tensor([1, 6]), torch.tensor([3, 5])


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("SUM", [4, 11]),
        ("AVG", [2, 5]),
        ("PRODUCT", [3, 30]),
        ("MIN", [1, 5]),
        ("MAX", [3, 6]),
        ("BAND", [1, 4]),
        ("BOR", [3, 7]),
        ("BXOR", [2, 3]),
        ("PREMUL_SUM", [2, 5]),
    ],
)
def test_reduced(op: str, expected: list[int]) -> None:
    assert reference.reduced([ONE, TWO], op).tolist() == expected


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("SUM", [True, True, False]),
        ("PRODUCT", [True, False, False]),
        ("BXOR", [False, True, False]),
    ],
)
def test_reduced_bool(op: str, expected: list[bool]) -> None:
    tensors = [torch.tensor([True, True, False]), torch.tensor([True, False, False])]
    assert reference.reduced(tensors, op).tolist() == expected


def test_moving() -> None:
    brought = [[ONE], [TWO]]
    assert reference.broadcast(brought, 0, 1, "")[0].tolist() == [3, 5]
    assert [t.tolist() for t in reference.all_gather(brought, 0, 0, "")] == [[1, 6], [3, 5]]
    assert reference.concatenated(brought, 0, 0, "")[0].tolist() == [1, 6, 3, 5]
    assert reference.stacked(brought, 0, 0, "")[0].tolist() == [[1, 6], [3, 5]]
    assert reference.all_to_all_single(brought, 1, 0, "")[0].tolist() == [6, 5]
    assert reference.reduce_scatter_tensor(brought, 1, 0, "SUM")[0].tolist() == [11]
    assert reference.gather(brought, 0, 1, "") == []
    assert reference.reduce(brought, 0, 1, "SUM") is None
    assert reference.ring(brought, 0, 0, "")[0].tolist() == [3, 5]


def test_uneven_splits() -> None:
    assert [reference.split_rows(rank, 3) for rank in range(3)] == [
        [0, 4, 2], [2, 0, 4], [4, 2, 0]
    ]  # fmt: skip
    brought = [[torch.arange(6) + 10 * rank] for rank in range(3)]
    found = reference.all_to_all_uneven(brought, 1, 0, "")[0]
    assert found.tolist() == [0, 1, 2, 3, 24, 25]
