"""A suite whose tests start their ranks. Run by `test_suites.py`."""

import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist


def start(rank, body):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29555")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    body(rank)
    dist.destroy_process_group()


def good(rank):
    dist.barrier()


def mismatch(rank):
    if rank:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(1))


def unwaited(rank):
    dist.all_reduce(torch.ones(1), async_op=True)


def fails(rank):
    assert rank == 0


def run(body):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=start, args=(rank, body)) for rank in range(2)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    return processes


@pytest.fixture
def in_setup():
    run(mismatch)


def test_good():
    run(good)


def test_does_not_look():
    run(mismatch)


def test_expects():
    assert any(process.exitcode for process in run(mismatch))


def test_unwaited():
    run(unwaited)


def test_own_failure():
    run(fails)


def test_in_setup(in_setup): ...


def test_last():
    run(good)
