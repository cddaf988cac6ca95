"""Tensors of one size and different shapes that meet in one collective."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.matching.agreement import find_reshaped
from phalanx.model import Finding, Group, Meeting, Op, TensorSpec
from tests.support import assert_silent

Shape = tuple[int, ...]


def find(*shapes: Shape, name: str = "all_reduce") -> Finding | None:
    world = Group("world", tuple(range(len(shapes))))
    ops = [
        Op(rank, name, world, 0, inputs=(TensorSpec("float32", shape),))
        for rank, shape in enumerate(shapes)
    ]
    return find_reshaped(Meeting(world, 0, tuple(ops)))


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "reduce"])
def test_the_odd_rank_is_named(name: str) -> None:
    found = find((2, 3), (3, 2), (2, 3), name=name)
    assert found is not None
    assert (found.kind, found.severity, found.ranks) == ("mismatch", "warning", (1,))


def test_of_two_nobody_is_to_blame() -> None:
    found = find((2, 3), (3, 2))
    assert found is not None and found.ranks == ()


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3), (2, 3)],
        [(2, 3), (1, 2, 3)],
        [(2, 3, 1), (2, 1, 3)],
        [(2, 3), (6,)],
        [(6,), (1, 6)],
        [(1,), ()],
        [(0, 3), (3, 0)],
        [(2, 3), (6,), (2, 3)],
    ],
)
def test_shapes_that_fit(shapes: list[Shape]) -> None:
    assert find(*shapes) is None


def test_other_operations_are_not_concerned() -> None:
    assert find((2, 3), (3, 2), name="all_gather") is None


def transposed() -> None:
    shape = (2, 3) if dist.get_rank() == 0 else (3, 2)
    for _ in range(3):
        dist.all_reduce(torch.ones(shape))


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.programs)]
)
def test_a_program_is_warned_once(engine: str) -> None:
    with phalanx.World(ranks=2, engine=engine, backend="gloo") as world:
        for _ in range(2):
            before = len(world.findings)
            with pytest.warns(phalanx.PhalanxWarning, match="passed float32"):
                world.run(transposed)
            (found,) = world.findings[before:]
            assert (found.kind, found.severity) == ("mismatch", "warning")


def flat() -> None:
    shape = (6,) if dist.get_rank() == 0 else (3, 2)
    dist.broadcast(torch.ones(shape), src=0)
    dist.all_reduce(torch.ones((1, 6) if dist.get_rank() == 0 else (6, 1)))


def test_a_flat_buffer_is_silent() -> None:
    assert_silent(flat)


def test_without_the_kind_nothing_is_said() -> None:
    assert_silent(transposed, checks="all,-mismatch")
