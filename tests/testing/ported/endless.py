"""Tests that never end by themselves. Run by `test_unittest_lost.py` with a limit of two
seconds for each test."""

import contextlib
import threading
import time

from phalanx.testing import MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase


class Endless:
    world_size = 2

    def test_computes(self) -> None:
        if self.rank == 1:
            spin_for_ever()

    def test_sleeps(self) -> None:
        if self.rank == 1:
            time.sleep(3600)

    def test_waits_for_an_event(self) -> None:
        if self.rank == 1:
            threading.Event().wait()

    def test_zz_the_suite_goes_on(self) -> None:
        self.assertIn(self.rank, (0, 1))


def spin_for_ever() -> None:
    while True:
        pass


class Threads(Endless, MultiThreadedTestCase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    def test_swallows_everything(self) -> None:
        """Not even the exception that is to stop it gets through."""
        while self.rank == 1:
            with contextlib.suppress(BaseException):
                time.sleep(0.01)


class Processes(Endless, MultiProcessTestCase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


class Continuous(Endless, MultiProcContinuousTest):
    pass
