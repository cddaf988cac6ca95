"""Faults in tests on ranks: `@pytest.mark.ranks(3, faults=...)`, also explored."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from phalanx.faults import call, kill, raise_
from phalanx.testing.collection.marker import Given, find_plan


def barriers() -> int:
    """How many of three have failed."""
    lost = 0
    for _ in range(3):
        try:
            dist.barrier()
        except RuntimeError:
            lost += 1
    return lost


@pytest.mark.ranks(3, faults="kill(rank=2, at=call(2))")
def test_survivors_go_on() -> None:
    assert dist.get_rank() < 2 or barriers() == -1  # rank 2 never comes to the end
    assert dist.get_rank() == 2 or barriers() == 2


@pytest.mark.ranks(2, faults=[raise_(MemoryError, rank=1, at=call(1))])
def test_an_error_is_raised_in_the_rank() -> None:
    if dist.get_rank() == 1:
        with pytest.raises(MemoryError):
            dist.barrier()
    dist.barrier()


@pytest.fixture
def own_group() -> object:
    yield dist.group.WORLD
    assert dist.get_rank() == 0, "a killed rank tears nothing down"


@pytest.mark.ranks(2, faults=kill(rank=1, at=call(1)))
def test_a_killed_rank_tears_nothing_down(own_group: object) -> None:
    barriers()


@pytest.mark.ranks(3, explore=20, faults="kill")
def test_every_run_of_an_exploration_has_a_plan() -> None:
    store = dist.distributed_c10d._get_default_store()
    store.set(f"rank {dist.get_rank()}", "1")
    assert barriers() <= 3


def test_kinds_belong_to_the_exploration_and_not_to_its_runs() -> None:
    mark = pytest.mark.ranks(2, explore=200, faults="kill,delay").mark
    found = find_plan([mark], Given())
    assert found is not None
    (way,) = found.ways
    assert way.faults == ()
    assert way.explore is not None
    assert way.explore.fault_kinds == ("kill", "delay")
