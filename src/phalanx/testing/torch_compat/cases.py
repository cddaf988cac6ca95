"""What all our test classes share: the base class, time limits, the test method that either
starts the ranks or is the test itself, the replay line, subtests.

`multi_threaded.py`, `multi_process.py`, `continuous.py` and `dynamo.py` build on it.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.errors import UsageError
from phalanx.testing.torch_compat.equality import PlainTestCase
from phalanx.testing.torch_compat.shown_traceback import pytest_id

if TYPE_CHECKING:
    TestCase = PlainTestCase
else:
    # Suites made for torch's classes count on its `assertEqual` and the rest.
    TestCase = private.torch_test_case() or PlainTestCase

__unittest = True

TIMEOUT_DEFAULT = int(os.getenv("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "300"))
TIMEOUT_OVERRIDE = {"test_ddp_uneven_inputs": 400, "test_DistributedDataParallel": 500}
"""Seconds for tests by name; a suite may add its own."""

MAIN_RANK = -1
"""The `rank` of the instance that unittest made, which is no rank."""

DEFAULT_WORLD_SIZE = (
    min(4, max(2, torch.cuda.device_count())) if torch.version.hip is not None else 4
)

logger = logging.getLogger(__name__)
"""Suites use the logger of torch's module."""


def ranks_of(world_size: Any) -> int:
    """The number of ranks of a class. `min(4, torch.cuda.device_count())` is 0 without GPUs:
    then torch's classes run nothing and report success; ours skip."""
    size = int(world_size)
    if size < 0:
        raise UsageError(f"world_size is {size}; give the number of ranks, from 1")
    if size == 0:
        raise unittest.SkipTest("world_size is 0 here, so there is no rank to run on")
    return size


FROM_TORCHRUN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
)


def get_timeout(test_id: str) -> int:
    """Seconds that a test has, all ranks together."""
    return TIMEOUT_OVERRIDE.get(test_id.rpartition(".")[2], TIMEOUT_DEFAULT)


def leave_out_torchrun(environ: MutableMapping[str, str], before: Mapping[str, str]) -> None:
    """In a rank: restore the program's values of the variables that torchrun sets, because
    tests of these classes start their ranks themselves. DeviceMesh, for one, reads
    LOCAL_RANK."""
    for name in FROM_TORCHRUN:
        if name in before:
            environ[name] = before[name]
        else:
            environ.pop(name, None)


class RanksTestCase(TestCase):
    """A case whose test method runs on ranks. unittest's own instance starts them and reports
    how they ended; each rank makes an instance of its own and calls the test itself."""

    rank: int

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803
        name = method_name if methodName == "runTest" else methodName
        super().__init__(name)
        test = getattr(self, name, None)
        if test is not None:
            setattr(self, name, self.join_or_run(test))
        elif methodName != "runTest":
            raise ValueError(f"{type(self).__name__} has no test method {methodName!r}")

    def join_or_run(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` for a rank; for unittest's instance, the run of all ranks."""

        @wraps(fn)
        def wrapper(self: RanksTestCase) -> None:
            __tracebackhide__ = True
            if self.rank == MAIN_RANK:
                _refuse_async(fn)
                self._join(fn)
            else:
                fn()

        return types.MethodType(wrapper, self)

    @contextmanager
    def subTest(self, *message: Any, **params: Any) -> Iterator[None]:  # noqa: N802
        """In a rank the first subtest that fails ends the test; the error names it."""
        try:
            with super().subTest(*message, **params):
                yield
        except unittest.SkipTest:
            raise
        except Exception as error:
            if sys.version_info >= (3, 11):
                told = [*map(repr, message), *(f"{k}={v!r}" for k, v in params.items())]
                error.add_note(f"in subTest({', '.join(told)})")
            raise

    def _join(self, fn: Callable[..., Any]) -> None:
        raise NotImplementedError


def _refuse_async(fn: Callable[..., Any]) -> None:
    """Refuse a coroutine: if it is not awaited, it has tested nothing."""
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise UsageError(
            f"{fn.__qualname__} is async, and torch.distributed would block its event loop; "
            "write an ordinary method, with asyncio.run(...) inside if need be"
        )


def check_spawned(spawned: bool, call: str) -> None:
    """A test that no rank ran has not passed."""
    if not spawned:
        raise UsageError(f"the test ran on no rank; call self.{call}() at the end of setUp")


def test_name_of(case: unittest.TestCase) -> str:
    return case.id().rpartition(".")[2]


test_name_of.__test__ = False  # type: ignore[attr-defined]


def replay_of(case: unittest.TestCase) -> str:
    """The command that runs this test again."""
    known_to_pytest = pytest_id()
    if known_to_pytest is not None:
        return f'pytest "{known_to_pytest}"'
    kind = type(case)
    if kind.__module__ == "__main__":
        return f"python {sys.argv[0]} {kind.__qualname__}.{test_name_of(case)}"
    return f"python -m unittest {case.id()}"


def run_cleanups(case: TestCase) -> None:
    """In a rank: run the functions given to `addCleanup`, last first. An error is not lost."""
    first: BaseException | None = None
    cleanups: list[Any] = case._cleanups  # type: ignore[attr-defined]
    while cleanups:
        function, args, kwargs = cleanups.pop()
        try:
            function(*args, **kwargs)
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


def run_subtests(
    cls_inst: TestCase,
    subtest_config: Mapping[str, Sequence[Any]],
    test_fn: Callable[..., Any],
    *test_args: Any,
    **test_kwargs: Any,
) -> None:
    """Call `test_fn` once for every combination of the values in `subtest_config`, by keyword,
    as a subtest of `cls_inst`, with a barrier after each."""
    for values in itertools.product(*subtest_config.values()):
        chosen = dict(zip(subtest_config, values, strict=True))
        with cls_inst.subTest(**chosen):
            private.reset_dynamo()
            test_fn(*test_args, **test_kwargs, **chosen)
            private.reset_dynamo()
        dist.barrier()
