"""A suite that every rank runs, and one never comes back. Run by `test_suites.py`."""

import torch.distributed as dist


def test_hangs():
    dist.init_process_group("gloo")
    while dist.get_rank() == 1:
        pass
    dist.barrier()


def test_next(): ...


def test_last(): ...
