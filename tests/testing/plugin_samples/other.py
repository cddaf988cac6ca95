"""What pytest and its plugins offer besides, on ranks; `test_plugin_beside` looks at it."""

import asyncio
import unittest
import warnings

import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.ranks(2)


def test_subtests(subtests, rank):
    for number in range(3):
        with subtests.test("number", number=number):
            dist.barrier()
            assert number != 1
    with subtests.test("on one", own=rank):
        assert rank == 0
    with subtests.test("skipped"):
        pytest.skip("not this")


async def test_async():
    await asyncio.sleep(0)


class TestOfUnittest(unittest.TestCase):
    def test_method(self):
        pass


@settings(max_examples=20, deadline=None, derandomize=True)
@given(number=st.integers(0, 100))
def test_hypothesis(number, rank):
    total = torch.tensor(number)
    dist.all_reduce(total)
    assert total < 100


def test_warns(rank):
    warnings.warn(f"from rank {rank}", DeprecationWarning, stacklevel=1)


@pytest.mark.filterwarnings("error")
def test_warning_as_error(rank):
    if rank == 1:
        warnings.warn("turned into an error", UserWarning, stacklevel=1)


def test_properties(record_property, rank):
    record_property("same", 5)
    record_property("own", rank)
    print(f"printed by {rank}")
    assert rank == 0


def test_returns():
    return 5


def test_leaves_a_message(rank):
    if rank == 0:
        dist.isend(torch.ones(2), 1)


@pytest.mark.usefixtures("tmp_path")
@pytest.mark.parametrize("which", ["a", "b"])
def test_plain(which):
    dist.barrier()


class TestHypothesis:
    @settings(max_examples=3, deadline=None)
    @given(number=st.integers(0, 5))
    def test_in_class(self, number, rank):
        assume(number < 6)
        note(f"drawn {number}")
        assert rank in (0, 1)

    @settings(max_examples=3, deadline=None)
    @given(data=st.data())
    def test_data(self, data):
        data.draw(st.integers())
