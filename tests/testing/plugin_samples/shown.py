"""Failures and how they are shown; `test_plugin_reports` has the texts."""

import logging
import sys

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ranks(4)


def test_alike(rank):
    total = torch.tensor(1)
    dist.all_reduce(total)
    print("the same on all")
    assert total == 5


def test_values(rank):
    assert rank * 2 == 10


def test_one(rank):
    print(f"rank {rank} is here")
    print("complaint", file=sys.stderr)
    logging.getLogger("sample").warning("logged")
    if rank == 2:
        mine = {"rank": rank}
        assert mine == {"rank": 3}
    dist.barrier()


def test_different(rank):
    if rank == 0:
        raise ValueError("first")
    if rank == 1:
        raise KeyError("second")
    assert rank == 9


def test_mismatch(rank):
    if rank == 2:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(2))


def test_helper(rank):
    def deep(value):
        assert value < 1

    deep(rank)
    dist.barrier()
