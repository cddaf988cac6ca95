"""Tensors that lie in memory in any way: a call is refused by a rule, or it is right.

Right means: the values are those of the reference, and nothing beside the tensor is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import phalanx
from phalanx.backend.profiles import TensorUse
from phalanx.backend.profiles.gloo import GLOO
from tests.backend import reference

RANKS = 2
GUARD = -77.0


@dataclass(frozen=True)
class Layout:
    """The order of the dimensions in memory and the distance of elements along each."""

    order: tuple[int, ...]
    steps: tuple[int, ...]

    def place(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """A tensor with these values, laid out so, and the memory around it."""
        sizes = [
            values.shape[dim] * step for dim, step in zip(self.order, self.steps, strict=True)
        ]
        memory = torch.full((1, *sizes, 1), GUARD)
        inner = memory[0, ..., 0][tuple(slice(None, None, step) for step in self.steps)]
        placed = inner.permute([self.order.index(dim) for dim in range(values.dim())])
        return placed.copy_(values), memory


@st.composite
def layouts(draw: Any, dims: int) -> Layout:
    order = draw(st.permutations(range(dims)))
    return Layout(tuple(order), tuple(draw(st.sampled_from([1, 1, 1, 2])) for _ in order))


@dataclass(frozen=True)
class Operation:
    """`call(inputs, outputs)`; how many of each a rank has, and what it must get."""

    name: str
    inputs: int
    outputs: int
    call: Callable[[list[Tensor], list[Tensor]], Any]
    expect: Callable[[list[list[Tensor]]], list[list[Tensor]]]
    reduce_op: str | None = None


def first(brought: list[list[Tensor]]) -> list[Tensor]:
    return [tensors[0] for tensors in brought]


OPERATIONS = [
    Operation(
        "all_reduce",
        1,
        0,
        lambda given, _: dist.all_reduce(given[0]),
        lambda brought: [[t] for t in reference.all_reduce(first(brought))],
        "SUM",
    ),
    Operation(
        "broadcast",
        1,
        0,
        lambda given, _: dist.broadcast(given[0], 1),
        lambda brought: [[t] for t in reference.broadcast(first(brought), 1)],
    ),
    Operation(
        "all_gather",
        1,
        RANKS,
        lambda given, rooms: dist.all_gather(rooms, given[0]),
        lambda brought: reference.all_gather(first(brought)),
    ),
    Operation(
        "scatter",
        RANKS,
        1,
        lambda given, rooms: dist.scatter(rooms[0], given if dist.get_rank() == 0 else None),
        lambda brought: [[t] for t in reference.scatter(brought, 0)],
    ),
    Operation(
        "reduce_scatter",
        RANKS,
        1,
        lambda given, rooms: dist.reduce_scatter(rooms[0], given),
        lambda brought: [[t] for t in reference.reduce_scatter(brought)],
        "SUM",
    ),
    Operation(
        "all_to_all",
        RANKS,
        RANKS,
        lambda given, rooms: dist.all_to_all(rooms, given),
        reference.all_to_all,
    ),
    Operation(
        "all_to_all_single",
        1,
        1,
        lambda given, rooms: dist.all_to_all_single(rooms[0], given[0]),
        lambda brought: [[t] for t in reference.all_to_all_flat(first(brought))],
    ),
]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from([(2, 3), (4, 1), (2, 2, 3)]).flatmap(
        lambda shape: st.tuples(
            st.just(shape), layouts(dims=len(shape)), layouts(dims=len(shape))
        )
    ),
)
def test_refused_by_a_rule_or_right(
    operation: Operation, laid: tuple[tuple[int, ...], Layout, Layout]
) -> None:
    shape, of_inputs, of_outputs = laid

    def values(rank: int, index: int) -> Tensor:
        count = torch.Size(shape).numel()
        return torch.arange(float(count)).view(shape) + 100 * rank + 1000 * index

    def program() -> Any:
        rank = dist.get_rank()
        placed = [of_inputs.place(values(rank, i)) for i in range(operation.inputs)]
        rooms = [of_outputs.place(torch.zeros(shape)) for _ in range(operation.outputs)]
        inputs, outputs = [t for t, _ in placed], [t for t, _ in rooms]
        try:
            operation.call(inputs, outputs)
        except dist.DistError:
            assert any(map(GLOO.refusal, uses(operation, inputs, outputs)))
            return None
        assert not any(map(GLOO.refusal, uses(operation, inputs, outputs)))
        for tensor, memory in (*placed, *rooms):
            assert (memory != GUARD).sum() == tensor.numel()
        return [t.clone() for t in outputs or inputs]

    brought = [[values(rank, i) for i in range(operation.inputs)] for rank in range(RANKS)]
    found = phalanx.run(program, ranks=RANKS, backend="gloo")
    assert (found[0] is None) == (found[1] is None)
    if found[0] is not None:
        expected = operation.expect(brought)
        for ours, right in zip(found, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, right, strict=True))


def uses(operation: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> list[TensorUse]:
    """What the rules are asked; all ranks have the same layouts."""
    same = {"alike": True, "reduce_op": operation.reduce_op}
    if outputs:
        plain = inputs[0].is_contiguous() and outputs[0].is_contiguous()
        same["alike"] = plain or inputs[0].stride() == outputs[0].stride()
    return [
        *(TensorUse.of(operation.name, t, **same) for t in inputs),
        *(TensorUse.of(operation.name, t, part="output", **same) for t in outputs),
    ]
