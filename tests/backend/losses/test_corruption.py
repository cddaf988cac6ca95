"""Bits of one call are flipped: of what a rank gets, or of what it gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend.losses.corruption import flip_bits
from phalanx.faults import corrupt

RANKS = 3


def sums() -> list[float]:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    again = torch.ones(4)
    dist.all_reduce(again)
    assert again.tolist() == [RANKS] * 4
    return tensor.tolist()


def gathered() -> tuple[list[Any], list[float]]:
    mine = torch.full((2,), float(dist.get_rank()))
    parts = [torch.empty(2) for _ in range(RANKS)]
    dist.all_gather(parts, mine)
    return [part.tolist() for part in parts], mine.tolist()


def from_root() -> list[float]:
    tensor = torch.ones(4) if dist.get_rank() == 1 else torch.zeros(4)
    dist.broadcast(tensor, 1)
    return tensor.tolist()


def message() -> list[int]:
    tensor = torch.arange(6)
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        received = torch.zeros(6, dtype=torch.int64)
        work = dist.irecv(received, 0)
        assert work is not None
        work.wait()
        return received.tolist()
    return tensor.tolist()


def barrier() -> None:
    dist.barrier()


def run(program: Any, **fault: Any) -> list[Any]:
    return phalanx.run(program, ranks=RANKS, backend="gloo", faults=[corrupt(**fault)])


def different(values: list[Any], right: Any) -> list[int]:
    return [rank for rank, value in enumerate(values) if value != right]


def test_a_result_is_damaged_for_its_rank_alone() -> None:
    assert different(run(sums, rank=1, call=1), [3.0] * 4) == [1]


def test_a_contribution_is_damaged_for_all() -> None:
    values = run(sums, rank=1, call=1, part="contribution", seed=1)
    assert values[0] == values[1] == values[2] != [3.0] * 4


def test_what_a_rank_gives_stays_whole_in_its_own_memory() -> None:
    values = run(gathered, rank=2, call=1, part="contribution")
    assert [mine for _, mine in values] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert all(parts[2] != [2.0, 2.0] and parts[0] == [0.0, 0.0] for parts, _ in values)


def test_the_root_of_a_broadcast_keeps_what_it_has() -> None:
    values = run(from_root, rank=1, call=1, part="contribution")
    assert different(values, [1.0] * 4) == [0, 2]


@pytest.mark.parametrize("rank, part", [(0, "contribution"), (1, "result")])
def test_a_message_is_damaged_on_its_way(rank: int, part: str) -> None:
    assert different(run(message, rank=rank, call=1, part=part), [*range(6)]) == [1]


def test_what_moves_nothing_cannot_be_damaged() -> None:
    assert run(barrier, rank=0, call=1) == [None] * RANKS


def test_the_seed_decides_which_bits() -> None:
    one = run(sums, rank=1, call=1, seed=5)
    assert run(sums, rank=1, call=1, seed=5) == one
    assert any(run(sums, rank=1, call=1, seed=seed) != one for seed in range(4))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
)
@pytest.mark.parametrize("layout", ["plain", "strided", "scalar"])
@pytest.mark.parametrize("bits", [1, 3])
def test_so_many_bits_are_flipped_in_any_tensor(
    dtype: torch.dtype, layout: str, bits: int
) -> None:
    made = torch.zeros(6, 4).to(dtype)
    tensor = {"plain": made, "strided": made.t()[::2], "scalar": made[0, 0]}[layout]
    flip_bits([tensor], bits, seed=3)
    whole = made.contiguous().view(-1).view(torch.uint8)
    there = 1 if layout == "scalar" and dtype is torch.bool else bits
    assert sum(int(value).bit_count() for value in whole.tolist()) == there
    if layout == "strided":
        rest = made.t()[1::2].contiguous().view(torch.uint8)
        assert not rest.any()


def test_bits_lie_anywhere_in_several_tensors() -> None:
    hit = set()
    for seed in range(20):
        tensors = [torch.zeros(2, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)]
        flip_bits(tensors, 1, seed)
        hit |= {number for number, tensor in enumerate(tensors) if tensor.any()}
    assert hit == {0, 1}
