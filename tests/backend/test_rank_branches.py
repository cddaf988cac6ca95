"""Two ranks that disagree: who is at fault if one came by a branch that asks for the rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.model import Mismatch


def verdict_of(program: Callable[[], None]) -> Mismatch:
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(program, ranks=2)
    verdict = caught.value.verdict
    assert isinstance(verdict, Mismatch)
    return verdict


def evaluate() -> None:
    dist.all_reduce(torch.ones(1))


def evaluated_by_one() -> None:
    rank = dist.get_rank()
    if rank == 0:
        evaluate()
    dist.barrier()


def asked_in_the_condition() -> None:
    if dist.get_rank() > 0:
        evaluate()
    dist.barrier()


@pytest.mark.parametrize(
    ("program", "rank"), [(evaluated_by_one, 0), (asked_in_the_condition, 1)]
)
def test_who_came_by_a_branch_of_its_own_is_at_fault(program, rank: int) -> None:
    verdict = verdict_of(program)
    assert verdict.ranks == (rank,)
    assert [block.odd for block in verdict.blocks] == [False, True]
    assert verdict.hint is not None and verdict.hint.startswith(f"rank {rank} came there by a")
    line = verdict.hint.rpartition(":")[2]
    assert int(line) in range(program.__code__.co_firstlineno, 60)


def both_by_a_branch() -> None:
    rank = dist.get_rank()
    if rank == 0:
        evaluate()
    else:
        dist.barrier()


def a_condition_of_another_kind() -> None:
    ready = dist.get_rank() == 0
    if ready:
        evaluate()
    dist.barrier()


def a_name_that_only_has_the_letters() -> None:
    franked = dist.get_rank() == 0
    if franked:
        evaluate()
    dist.barrier()


@pytest.mark.parametrize(
    "program", [both_by_a_branch, a_condition_of_another_kind, a_name_that_only_has_the_letters]
)
def test_otherwise_nothing_is_decided(program) -> None:
    assert verdict_of(program).ranks == ()
