"""Tests whose ranks end with exit codes, expected or not. Run by `test_unittest_codes.py`."""

import os
import signal
import sys
import time

import torch.distributed as dist

from phalanx.testing import TIMEOUT_OVERRIDE, MultiProcessTestCase

TIMEOUT_OVERRIDE["test_a_rank_hangs_though"] = 5


class Codes(MultiProcessTestCase):
    world_size = 2

    def setUp(self) -> None:
        super().setUp()
        name = self._testMethodName
        test = getattr(self, name).__wrapped__
        if "abort" in name:
            self.special_return_code_checks = {test: -signal.SIGABRT}
        if "any" in name:
            self.skip_return_code_checks = [test]
        self._spawn_processes()

    def test_all_abort(self) -> None:
        os.abort()

    def test_first_aborts(self) -> None:
        if self.rank == 0:
            os.abort()

    def test_first_aborts_late(self) -> None:
        """The others are waited for: they may be what is tested."""
        if self.rank == 0:
            time.sleep(1.2)
        os.abort()

    def test_only_second_aborts(self) -> None:
        if self.rank == 1:
            os.abort()

    def test_nobody_aborts(self) -> None:
        pass

    def test_any_and_the_survivor_passes(self) -> None:
        if self.rank == 1:
            os._exit(3)
        time.sleep(0.8)

    def test_any_and_the_survivor_fails(self) -> None:
        if self.rank == 1:
            os._exit(3)
        time.sleep(0.8)
        self.fail("what the survivor saw")

    def test_error_code_of_torchs_harness(self) -> None:
        sys.exit(self.TEST_ERROR_EXIT_CODE)

    def test_leaves_with_zero(self) -> None:
        os._exit(0)

    def test_skip_while_another_waits(self) -> None:
        store = dist.FileStore(self.file_name, 2)
        dist.init_process_group("gloo", rank=self.rank, world_size=2, store=store)
        if self.rank == 1:
            self.skipTest("not here")
        dist.barrier()


class OwnCheck(MultiProcessTestCase):
    """Suites of torch's judge the exit codes themselves."""

    world_size = 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _check_return_codes(self, fn, elapsed_time) -> None:
        codes = [process.exitcode for process in self.processes]
        assert codes == [-signal.SIGABRT, 1], codes

    def test_as_expected(self) -> None:
        if self.rank == 0:
            os.abort()
        sys.exit(1)

    def test_otherwise(self) -> None:
        pass

    def test_a_rank_raises_though(self) -> None:
        if self.rank == 0:
            raise ValueError("not planned")
        time.sleep(60)

    def test_a_rank_dies_otherwise(self) -> None:
        if self.rank == 0:
            print("last words", file=sys.stderr, flush=True)
            os._exit(3)

    def test_a_rank_hangs_though(self) -> None:
        if self.rank == 0:
            os.abort()
        time.sleep(60)


class Seen(MultiProcessTestCase):
    """What is left of the processes."""

    world_size = 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _join_processes(self, fn) -> None:
        super()._join_processes(fn)
        for process in self.processes:
            process.join(1)
        pids = {process.pid for process in self.processes}
        assert len(pids) == 2 and os.getpid() not in pids

    def test_processes(self) -> None:
        pass


class OwnStart(MultiProcessTestCase):
    def setUp(self) -> None:
        super().setUp()

        def start(*args, **kwargs):
            raise AssertionError

        self._start_processes(start)

    def test_refused(self) -> None:
        pass
