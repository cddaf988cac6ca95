"""Every way in which a rank can end; `test_plugin_outcomes` says what must come of each."""

import os
import sys
import unittest

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ranks(2)


def test_passes():
    dist.barrier()


def test_fail_on_one(rank):
    if rank == 1:
        pytest.fail("on one")


def test_fail_on_all():
    pytest.fail("on all")


def test_assert_on_one(rank):
    assert rank == 0
    dist.barrier()


def test_skip_on_all():
    pytest.skip("not today")


def test_skip_on_one(rank):
    if rank == 1:
        pytest.skip("only one")


def test_skip_of_unittest():
    raise unittest.SkipTest("as unittest does")


def test_importorskip():
    pytest.importorskip("no_such_module")


def test_others_wait_for_a_skipped(rank):
    if rank == 1:
        pytest.skip("others wait")
    dist.barrier()


def test_sys_exit_1(rank):
    if rank == 1:
        sys.exit(1)


def test_sys_exit_0():
    sys.exit(0)


def test_os_exit_3(rank):
    if rank == 1:
        os._exit(3)
    dist.barrier()


def test_os_exit_0(rank):
    if rank == 1:
        os._exit(0)


def test_odd_exception(rank):
    class Odd(BaseException):
        pass

    if rank == 1:
        raise Odd("odd")


def test_xfail_call(rank):
    if rank == 1:
        pytest.xfail("known")
    dist.barrier()


def test_xfail_call_hides_nothing(rank):
    if rank == 1:
        pytest.xfail("known")
    raise ValueError("not known")


@pytest.mark.xfail(raises=ValueError, strict=True)
def test_xfail_mark():
    class Mine(ValueError):
        def __init__(self, one, two):
            super().__init__("cannot be pickled")

    raise Mine(1, 2)


@pytest.mark.xfail(raises=ValueError, strict=True)
def test_xfail_mark_other_error():
    raise KeyError("other")


@pytest.mark.xfail(strict=True)
def test_xpass_strict():
    dist.barrier()


@pytest.fixture
def broken(rank):
    if rank == 1:
        raise RuntimeError("cannot make")


def test_broken_setup(broken):
    dist.barrier()


@pytest.fixture
def late(rank):
    yield
    if rank == 1:
        raise RuntimeError("cannot drop")


def test_broken_teardown(late):
    dist.barrier()


def test_raises():
    with pytest.raises(ValueError, match="expected"):
        raise ValueError("expected")


@pytest.fixture
def communicating():
    yield
    dist.barrier()


def test_teardown_communicates(communicating, rank):
    assert rank == 0
    dist.all_reduce(torch.ones(2))


def test_deadlock(rank):
    if rank == 1:
        dist.barrier()


@pytest.mark.ranks(1)
def test_one_rank(rank):
    assert rank == 0


def test_goes_on():
    dist.barrier()


def test_broken_text(rank):
    class Broken(Exception):
        def __str__(self):
            raise ValueError("no text")

    if rank == 1:
        raise Broken
    dist.barrier()


@pytest.mark.xfail(raises=ValueError, strict=True)
def test_xfail_mark_on_one_only(rank):
    if rank == 0:
        raise ValueError("known")
    raise KeyError("not known")


@pytest.mark.xfail(raises=AssertionError, strict=True)
def test_xfail_mark_and_teardown(late, rank):
    assert rank == 0


def test_xfail_mark_by_a_rank(request, rank):
    if rank == 1:
        request.node.add_marker(pytest.mark.xfail(reason="found out late", strict=True))
        raise ValueError("known")
