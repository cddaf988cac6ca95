"""Tests on ranks: `pytest examples/test_train_step.py`, and the same on real processes with
`--ranks-engine processes`. Each test runs once on every rank, with a fresh process group.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.testing import assert_replicas_in_sync, assert_same_on_all_ranks


@pytest.fixture
def model() -> nn.Module:
    """An ordinary fixture: every rank makes its own, with gradients of its own."""
    torch.manual_seed(0)
    return nn.Linear(8, 1)


@pytest.mark.ranks(2, 4)
def test_all_reduce_sums_over_all_ranks(rank: int, world_size: int) -> None:
    t = torch.tensor(float(rank))
    dist.all_reduce(t)
    assert t == sum(range(world_size))


@pytest.mark.ranks(4)
def test_a_step_leaves_the_replicas_equal(rank: int, model: nn.Module) -> None:
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    loss = replica(torch.full((3, 8), float(rank))).square().mean()
    loss.backward()
    optimizer.step()
    assert_replicas_in_sync(model)
    assert_same_on_all_ranks(model.weight.grad)


@pytest.mark.ranks(3)
def test_only_the_root_has_the_parts(rank: int) -> None:
    parts = [torch.zeros(2) for _ in range(3)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), parts, dst=0)
    if parts is not None:
        assert [part[0].item() for part in parts] == [0.0, 1.0, 2.0]
