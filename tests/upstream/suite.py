"""torch's own backend suite, on ranks of ours and on real Gloo processes. Used by `worker.py`.

The suite is imported from the installed torch. It reads BACKEND, WORLD_SIZE and INIT_METHOD
from the environment when it is imported, so one process is good for one number of ranks.
Here is only what the suite takes for granted of a process and a thread does not have: a
process id of its own, module variables of its own, about the same speed as the others. All
else in which a process and a rank differ is the product's business and is not mended here.
"""

from __future__ import annotations

import os
import sys
import types
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

import phalanx


def _stand_in_for_expecttest() -> None:
    """torch's test classes derive from this package's, but the backend suite has no test that
    needs it."""
    module = types.ModuleType("expecttest")
    module.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    module.ACCEPT = False  # type: ignore[attr-defined]
    sys.modules["expecttest"] = module


try:
    import expecttest  # noqa: F401
except ImportError:
    _stand_in_for_expecttest()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from pretend import CpuForGpu, asks_for_gpus, pretend_gpus  # noqa: E402
from torch.testing._internal import common_distributed, common_utils  # noqa: E402
from torch.testing._internal.distributed import distributed_test as upstream  # noqa: E402

OWN_RANK = "UPSTREAM_RANK"
"""Which rank this is, for the driver."""

FROM_TORCHRUN = ("RANK", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_")
"""What our ranks find in the environment and the suite's processes do not, since it starts them
itself. DeviceMesh goes by LOCAL_RANK."""


class _PerRankCount(type):
    """`barrier_id` of the suite's barrier is a class variable: one for each process."""

    counts: ClassVar[dict[str, int]] = {}

    @property
    def barrier_id(cls) -> int:
        return cls.counts.get(os.environ[OWN_RANK], 0)

    @barrier_id.setter
    def barrier_id(cls, count: int) -> None:
        cls.counts[os.environ[OWN_RANK]] = count


class _PerRankBarrier(upstream.Barrier, metaclass=_PerRankCount):
    pass


class _PerRankOs(types.ModuleType):
    """`os` with a process id per rank: the suite names files after it."""

    def getpid(self) -> str:
        return f"{os.getpid()}{int(os.environ[OWN_RANK]):04d}"

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@contextmanager
def _temp_file_for_all(original: Any = upstream._rank_temp_file) -> Iterator[str]:
    """Rank 0 removes the suite's shared file when it has done with it itself. Processes run at
    about the same speed; among our ranks the others may not even have opened it."""
    with original() as name:
        yield name
        dist.barrier()


@contextmanager
def ranks_look_like_processes() -> Iterator[None]:
    """What the suite finds in place of its own module variables while ranks are threads."""
    replaced = {
        "Barrier": _PerRankBarrier,
        "os": _PerRankOs("os"),
        "_rank_temp_file": _temp_file_for_all,
    }
    _PerRankCount.counts.clear()
    with mock.patch.multiple(upstream, **replaced):
        yield


class _EndedRank:
    """What the suite asks of a process that has ended."""

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode
        self.pid = os.getpid()

    def terminate(self) -> None:
        pass


class OnThreads(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
    """Ranks are threads of this process."""

    def _join_processes(self, fn: Any) -> None:
        with ranks_look_like_processes():
            codes = phalanx.run(self._run_rank, ranks=int(self.world_size), init=False)
        self.processes = [_EndedRank(code) for code in codes]
        self._check_return_codes(fn, 0.0)

    def _run_rank(self) -> int:
        """What a process of the suite does from its start to its end."""
        rank = os.environ[OWN_RANK] = os.environ["RANK"]
        for name in [name for name in os.environ if name.startswith(FROM_TORCHRUN)]:
            del os.environ[name]
        try:
            self._run(int(rank), self._current_test_name(), self.file_name, None)
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    def run_test(self, test_name: str, parent_pipe: None) -> None:
        """As the suite's own, less the thread that writes down the stacks of a process that
        hangs: our own reports do that, and a failure goes up as an exception."""
        os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
        common_utils.set_rng_seed()
        try:
            getattr(self, test_name)()
        except unittest.SkipTest:
            sys.exit(common_distributed.TEST_SKIPS["generic"].exit_code)


class OnGloo(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
    """Ranks are processes. They are forked, because this process has the suite loaded; so it
    must not have computed anything before."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class _WithCpuTensors:
    @classmethod
    def _run(cls, *args: Any, **kwargs: Any) -> None:
        with CpuForGpu():
            super()._run(*args, **kwargs)  # type: ignore[misc]


class OnThreadsCpu(_WithCpuTensors, OnThreads):
    pass


class OnGlooCpu(_WithCpuTensors, OnGloo):
    pass


def case_class(engine: str, *, gpu_tests: bool) -> type[unittest.TestCase]:
    """The class to make a test case from. With `gpu_tests` this process sees GPUs from then
    on that are none."""
    if not gpu_tests:
        return {"threads": OnThreads, "gloo": OnGloo}[engine]
    pretend_gpus(upstream, common_distributed)
    return {"threads": OnThreadsCpu, "gloo": OnGlooCpu}[engine]


def names(*, gpu_tests: bool) -> list[str]:
    """All tests of the suite, or those that ask for GPUs."""
    base: Any = upstream.DistributedTest._DistTestBase
    found = unittest.TestLoader().getTestCaseNames(base)
    gates = common_distributed.skip_if_no_gpu, common_distributed.skip_if_lt_x_gpu(1)
    return [n for n in found if not gpu_tests or asks_for_gpus(getattr(base, n), *gates)]
