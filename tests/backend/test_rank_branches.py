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
    told = dict(verdict.names)["branch"]
    assert f"asks for the rank, and only rank {rank} is in it: " in told
    line = told.partition(" asks")[0].rpartition(":")[2]
    assert int(line) in range(program.__code__.co_firstlineno, 60)


def both_by_a_branch() -> None:
    rank = dist.get_rank()
    if rank == 0:
        evaluate()
    else:
        dist.barrier()


def by_a_variable() -> None:
    ready = dist.get_rank() == 0
    if ready:
        evaluate()
    dist.barrier()


def is_chief() -> bool:
    if not dist.is_initialized():
        return True
    return dist.get_rank() == 0


def by_a_function() -> None:
    if is_chief():
        evaluate()
    dist.barrier()


class Trainer:
    def __init__(self) -> None:
        self.number = dist.get_rank()
        self.is_main_process = self.number == 0

    @property
    def is_first(self) -> bool:
        return self.number == 0


def by_a_property() -> None:
    if Trainer().is_first:
        evaluate()
    dist.barrier()


def by_the_name_of_libraries() -> None:
    accelerator = Trainer()
    if accelerator.is_main_process:
        evaluate()
    dist.barrier()


@pytest.mark.parametrize(
    "program", [by_a_variable, by_a_function, by_a_property, by_the_name_of_libraries]
)
def test_the_rank_may_be_tested_behind_another_name(program) -> None:
    verdict = verdict_of(program)
    assert verdict.ranks == (0,)
    assert "asks for the rank, and only rank 0 is in it" in dict(verdict.names)["branch"]


def a_condition_of_another_kind() -> None:
    is_set = bool([1, 0][dist.get_rank()])
    if is_set:
        evaluate()
    dist.barrier()


def batches_of(rank: int) -> list[int]:
    return [1] * (1 - rank)


def what_is_made_of_the_rank() -> None:
    batches = batches_of(dist.get_rank())
    if len(batches) > 0:
        evaluate()
    dist.barrier()


def a_name_that_only_has_the_letters() -> None:
    franked = not batches_of(1 - dist.get_rank())
    if franked:
        evaluate()
    dist.barrier()


@pytest.mark.parametrize(
    "program",
    [
        both_by_a_branch,
        a_condition_of_another_kind,
        what_is_made_of_the_rank,
        a_name_that_only_has_the_letters,
    ],
)
def test_otherwise_nothing_is_decided(program) -> None:
    assert verdict_of(program).ranks == ()
