"""The rows of a collective, carried out by a kernel that is Python: what a GPU would do, on
memory of the processor. The reference is `data_movement.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from phalanx.backend.collectives import data_movement, fused_movement
from phalanx.backend.collectives.reduction import MAX, PREMUL_SUM, SUM, Reduction
from phalanx.backend.devices import fused_kernels
from phalanx.backend.devices.fused_kernels import COPY, Row

COUNT, SIZE = 3, 4


def at(address: int, nbytes: int, dtype: torch.dtype) -> Tensor:
    memory = (ctypes.c_char * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Row]]:
    """The rows of each launch."""
    found: list[Sequence[Row]] = []

    def move_rows(
        key: Any,
        make_rows: Callable[[], Sequence[Row]],
        *,
        op: int,
        dtype: torch.dtype,
        nbytes: int,
        device: int,
    ) -> bool:
        rows = make_rows()
        if not rows:
            return False
        found.append(rows)
        for size, inputs, outputs in rows:
            given = [at(each, size, dtype).clone() for each in inputs]
            if op != COPY:
                Reduction(op, len(given)).into(given[0], [each.clone() for each in given])
            for each in outputs:
                at(each, size, dtype).copy_(given[0])
        return True

    monkeypatch.setattr(fused_kernels, "move_rows", move_rows)
    return found


def call(name: str, **about: Any) -> Any:
    usual = {"inputs": (), "outputs": (), "op": None, "root": None, "facts": ((), ())}
    return SimpleNamespace(name=name, uneven=False, plain=False, **{**usual, **about})


def numbers(rank: int, size: int = SIZE, turn: int = 0) -> Tensor:
    return torch.arange(size, dtype=torch.float32) * (rank + 1) + 100 * rank + 10 * turn


def empty(size: int = SIZE) -> Tensor:
    return torch.full((size,), -1.0)


def lists(rank: int) -> list[Tensor]:
    return [numbers(rank, turn=turn) for turn in range(COUNT)]


def outputs() -> list[Tensor]:
    return [empty() for _ in range(COUNT)]


def of_root(rank: int, made: Callable[[], list[Tensor]]) -> list[Tensor]:
    return made() if rank == 1 else []


CASES: dict[str, Callable[[int], Any]] = {
    "all_reduce": lambda r: call("all_reduce", inputs=[numbers(r)], op=(SUM, None)),
    "reduce": lambda r: call("reduce", inputs=[numbers(r)], op=(MAX, None), root=1),
    "broadcast": lambda r: call("broadcast", inputs=[numbers(r)], root=1),
    "all_gather": lambda r: call("all_gather", inputs=[numbers(r)], outputs=[outputs()]),
    "all_gather_into_tensor": lambda r: call(
        "all_gather_into_tensor", inputs=[numbers(r)], outputs=[empty(COUNT * SIZE)]
    ),
    "gather": lambda r: call(
        "gather", inputs=[numbers(r)], outputs=of_root(r, outputs), root=1
    ),
    "scatter": lambda r: call(
        "scatter", inputs=of_root(r, lambda: lists(r)), outputs=[empty()], root=1
    ),
    "reduce_scatter": lambda r: call(
        "reduce_scatter", inputs=[lists(r)], outputs=[empty()], op=(SUM, None)
    ),
    "reduce_scatter_tensor": lambda r: call(
        "reduce_scatter_tensor",
        inputs=[numbers(r, COUNT * SIZE)],
        outputs=[empty()],
        op=(SUM, None),
    ),
    "all_to_all": lambda r: call("all_to_all", inputs=lists(r), outputs=outputs()),
    "all_to_all_single": lambda r: call(
        "all_to_all_single", inputs=[numbers(r, COUNT * SIZE)], outputs=[empty(COUNT * SIZE)]
    ),
}


def contents(calls: Sequence[Any]) -> list[Any]:
    """What all tensors hold."""

    def values(of: Any) -> Any:
        return of.tolist() if isinstance(of, Tensor) else [values(each) for each in of]

    return [values([each.inputs, each.outputs]) for each in calls]


def made(name: str) -> list[Any]:
    return [CASES[name](rank) for rank in range(COUNT)]


@pytest.mark.parametrize("name", CASES)
def test_rows_move_what_the_collective_moves(name: str, launched) -> None:
    expected, calls = made(name), made(name)
    getattr(data_movement, name)(expected)
    assert fused_movement.is_fused(calls)
    assert len(launched) == 1
    assert contents(calls) == contents(expected)


def test_every_collective_with_rows_is_tried() -> None:
    assert set(CASES) == set(fused_movement._PLANNERS)


def test_each_byte_is_read_once(launched) -> None:
    assert fused_movement.is_fused(made("all_gather_into_tensor"))
    (rows,) = launched
    assert [(len(inputs), len(taken)) for _, inputs, taken in rows] == [(1, COUNT)] * COUNT


def test_an_input_may_be_its_own_part_of_the_output(launched) -> None:
    calls = made("all_gather_into_tensor")
    for rank, each in enumerate(calls):
        part = each.outputs[0].chunk(COUNT)[rank]
        part.copy_(each.inputs[0])
        each.inputs = [part]
    assert fused_movement.is_fused(calls)
    whole = [value for rank in range(COUNT) for value in numbers(rank).tolist()]
    assert [each.outputs[0].tolist() for each in calls] == [whole] * COUNT


def test_an_output_may_be_its_own_part_of_the_input(launched) -> None:
    calls = made("reduce_scatter_tensor")
    for rank, each in enumerate(calls):
        each.outputs = [each.inputs[0].chunk(COUNT)[rank]]
    expected = made("reduce_scatter_tensor")
    data_movement.reduce_scatter_tensor(expected)
    assert fused_movement.is_fused(calls)
    assert [c.outputs[0].tolist() for c in calls] == [c.outputs[0].tolist() for c in expected]


def untouched(calls: list[Any]) -> bool:
    before = contents(calls)
    return not fused_movement.is_fused(calls) and contents(calls) == before


def test_a_tensor_that_ranks_share_is_left_alone(launched) -> None:
    shared = numbers(0)
    assert untouched([call("all_reduce", inputs=[shared], op=(SUM, None)) for _ in range(3)])


def test_an_input_inside_anothers_output_is_left_alone(launched) -> None:
    calls = made("all_gather_into_tensor")
    calls[0].inputs = [calls[1].outputs[0][:SIZE]]
    assert untouched(calls)


def test_an_output_that_reaches_into_other_pieces_is_left_alone(launched) -> None:
    calls = made("reduce_scatter_tensor")
    calls[0].outputs = [calls[0].inputs[0][2 : 2 + SIZE]]
    assert untouched(calls)


@pytest.mark.parametrize(
    "change",
    [
        {"uneven": True},
        {"inputs": [numbers(0, 2 * SIZE)[::2]]},
        {"inputs": [numbers(0).double()]},
        {"op": (PREMUL_SUM, 2.0)},
    ],
    ids=["uneven", "gaps", "types", "factors"],
)
def test_what_does_not_fit_is_left_alone(change: dict[str, Any], launched) -> None:
    calls = made("all_reduce")
    vars(calls[0]).update(change)
    assert untouched(calls)


def test_splits_are_left_alone(launched) -> None:
    calls = made("all_to_all_single")
    for each in calls:
        each.facts = ((SIZE,) * COUNT, (SIZE,) * COUNT)
    assert untouched(calls)


def test_lists_of_other_sizes_are_left_alone(launched) -> None:
    calls = made("all_gather")
    calls[2].outputs[0][1] = empty(SIZE + 1)
    assert untouched(calls)


def test_one_rank_alone_needs_no_kernel(launched) -> None:
    assert untouched([CASES["all_reduce"](0)])


def test_what_no_kernel_moves_is_moved_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_kernels, "is_available", lambda: False)
    calls, expected = made("all_reduce"), made("all_reduce")
    fused_movement.move(data_movement.all_reduce, calls)
    data_movement.all_reduce(expected)
    assert contents(calls) == contents(expected)
