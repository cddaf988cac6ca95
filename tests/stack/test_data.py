"""What prepares data and gradients around DDP: DistributedSampler, bucket assignment,
SyncBatchNorm (whose forward torch has on accelerators only)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import phalanx
from tests.stack.training import DDP


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [12, 13, 2])
def test_sampler_covers_the_data_once(length: int, shuffle: bool, drop_last: bool) -> None:
    """All indices; repeated at the end to make the shares even, or cut."""

    def program() -> list[list[int]]:
        sampler = DistributedSampler(
            range(length), shuffle=shuffle, drop_last=drop_last, seed=4
        )
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append(list(sampler))
        return epochs

    found = phalanx.run(program, ranks=4)
    each = length // 4 if drop_last else -(-length // 4)
    for epoch in range(2):
        order = list(range(length))
        if shuffle:
            generator = torch.Generator().manual_seed(4 + epoch)
            order = torch.randperm(length, generator=generator).tolist()
        padded = (order * 4)[: each * 4]
        for rank in range(4):
            assert found[rank][epoch] == padded[rank::4]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_loader_with_sampler(workers: int) -> None:
    def program() -> float:
        data = TensorDataset(torch.arange(10.0))
        loader = DataLoader(
            data, batch_size=2, sampler=DistributedSampler(data), num_workers=workers
        )
        total = torch.zeros(())
        for (values,) in loader:
            total += values.sum()
        dist.all_reduce(total)
        return total.item()

    assert phalanx.run(program, ranks=2) == [45.0, 45.0]


def test_bucket_assignment() -> None:
    """By size and by type; the first limit is for the first bucket."""

    def program() -> Any:
        tensors = [torch.empty(size) for size in (100, 50, 100, 50, 100)]
        tensors += [torch.empty(200, dtype=torch.float64)]
        return dist._compute_bucket_assignment_by_size(tensors, [400, 600])

    for buckets, limits in phalanx.run(program, ranks=2):
        assert buckets == [[0], [1, 2], [3, 4], [5]]
        assert limits == [400, 600, 600, 400]


def _converted() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    return nn.SyncBatchNorm.convert_sync_batchnorm(model, dist.group.WORLD)


def _forward() -> None:
    _converted()(torch.ones(2, 4))


def _in_ddp() -> None:
    DDP(_converted())


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (_forward, "SyncBatchNorm expected input tensor to be on"),
        (_in_ddp, "SyncBatchNorm layers only work with GPU modules"),
    ],
)
def test_sync_batch_norm_refuses_the_cpu(program: Any, text: str) -> None:
    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(program, ranks=2)
    assert all(text in str(error) for error in caught.value.failures.values())


def test_sync_batch_norm_in_eval_is_plain() -> None:
    def program() -> torch.Tensor:
        torch.manual_seed(0)
        norm = nn.SyncBatchNorm(3)
        norm.eval()
        result: torch.Tensor = norm(torch.ones(2, 3))
        return result

    norm = nn.BatchNorm1d(3).eval()
    for got in phalanx.run(program, ranks=2):
        assert torch.equal(got, norm(torch.ones(2, 3)))
