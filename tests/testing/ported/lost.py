"""Failures of every kind, many of which torch's own classes lose. Each class ends with a test
that passes, to show that the suite goes on. Run by `test_unittest_lost.py`."""

import os
import signal
import sys
import time
import unittest

import pytest
import torch
import torch.distributed as dist

from phalanx.testing import (
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
)


class Endings:
    """What a rank can do in every class."""

    def meet(self) -> None:
        total = torch.tensor(float(self.rank))
        dist.all_reduce(total)
        self.assertEqual(total.item(), 1.0)

    def test_pytest_fail_on_one(self) -> None:
        if self.rank == 1:
            pytest.fail("told by pytest")

    def test_pytest_fail_on_all(self) -> None:
        pytest.fail("told by pytest")

    def test_pytest_skip_on_all(self) -> None:
        pytest.skip("skipped by pytest")

    def test_skip_on_all(self) -> None:
        raise unittest.SkipTest("skipped by unittest")

    def test_skip_on_one(self) -> None:
        if self.rank == 1:
            self.skipTest("only here")

    def test_skip_on_one_and_failure_on_the_other(self) -> None:
        if self.rank == 1:
            self.skipTest("only here")
        self.fail("this one is real")

    def test_skip_on_one_while_the_other_waits(self) -> None:
        if self.rank == 1:
            self.skipTest("only here")
        dist.barrier()

    def test_exit_1_on_one(self) -> None:
        if self.rank == 1:
            sys.exit(1)

    def test_exit_with_text(self) -> None:
        if self.rank == 1:
            sys.exit("a text means failure")

    def test_exit_0(self) -> None:
        sys.exit(0)

    def test_failure_on_one(self) -> None:
        self.assertEqual(self.rank, 0)

    def test_error_in_cleanup(self) -> None:
        self.addCleanup(self.clean_up)

    def clean_up(self) -> None:
        raise OSError("cleaning up went wrong")

    @unittest.expectedFailure
    def test_known_failure(self) -> None:
        self.fail("known")

    def test_mismatch(self) -> None:
        if self.rank == 0:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(1))

    def test_waits_for_one_that_returned(self) -> None:
        if self.rank == 0:
            dist.barrier()

    def test_zz_the_suite_goes_on(self) -> None:
        self.meet()


class Deaths:
    """What only a process can do."""

    def test_killed(self) -> None:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)

    def test_os_exit_3(self) -> None:
        if self.rank == 1:
            os._exit(3)

    def test_segmentation_fault(self) -> None:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)


class Threads(Endings, MultiThreadedTestCase):
    world_size = 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    def perThreadSetUp(self) -> None:  # noqa: N802
        if "set_up" in self._testMethodName:
            raise OSError("setting up went wrong")

    def perThreadTearDown(self) -> None:  # noqa: N802
        if "tear_down" in self._testMethodName:
            raise OSError("tearing down went wrong")

    def test_set_up(self) -> None:
        pass

    def test_tear_down(self) -> None:
        pass

    def test_os_exit_3(self) -> None:
        if self.rank == 1:
            os._exit(3)


class ThreeThreads(MultiThreadedTestCase):
    world_size = 3

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    def test_skip_beside_a_deadlock(self) -> None:
        if self.rank == 2:
            self.skipTest("only here")
        dist.recv(torch.ones(1), src=1 - self.rank)


class Processes(Endings, Deaths, MultiProcessTestCase):
    world_size = 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    @classmethod
    def _run(cls, rank, test_name, file_name, parent_pipe, **kwargs) -> None:
        store = dist.FileStore(file_name, 2)
        dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
        super()._run(rank, test_name, file_name, parent_pipe, **kwargs)


class Continuous(Endings, Deaths, MultiProcContinuousTest):
    world_size = 2


class ThreadsNeverSpawned(MultiThreadedTestCase):
    def test_runs_on_no_rank(self) -> None:
        raise AssertionError("nobody runs this")


class ProcessesNeverSpawned(MultiProcessTestCase):
    def test_runs_on_no_rank(self) -> None:
        raise AssertionError("nobody runs this")
