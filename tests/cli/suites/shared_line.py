"""Two tests make their groups at one line, and one of them on a single rank only. Each rank
runs them."""

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True, scope="module")
def everyone():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


def make_group():
    return dist.new_group([1])


def test_all_make_it():
    make_group()


def test_one_makes_it():
    if dist.get_rank() == 1:
        make_group()
