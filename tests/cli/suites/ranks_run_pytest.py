"""A suite that every rank runs: one group for all tests. Run by `test_suites.py`."""

import pytest
import torch
import torch.distributed as dist


@pytest.fixture(scope="session", autouse=True)
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


def total():
    t = torch.ones(1)
    dist.all_reduce(t)
    return int(t)


def test_good():
    assert total() == 2


def test_one_fails():
    assert dist.get_rank() == 0, "rank 1 goes"
    total()


def test_after_failure():
    assert total() == 2


def test_one_skips():
    if dist.get_rank() == 1:
        pytest.skip("not here")
    total()


def test_after_skip():
    assert total() == 2


def test_mismatch():
    if dist.get_rank() == 1:
        dist.barrier()
    else:
        total()


def test_after_mismatch():
    assert total() == 2


def test_no_group():
    if dist.get_rank() == 1:
        raise ValueError("before the group")
    dist.new_group([0, 1])


def test_after_no_group():
    t = torch.ones(1)
    dist.all_reduce(t, group=dist.new_group([0, 1]))
    assert t == 2


def test_unwaited():
    dist.all_reduce(torch.ones(1), async_op=True)


def test_last():
    assert total() == 2
