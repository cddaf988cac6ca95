"""`MultiThreadedTestCase`: every test runs on ranks that are threads with the baton.

Also `spawn_threads_and_init_comms` for a single test method. Both are torch's names.
Point-to-point calls, checks and time limits, which torch's threaded group lacks, come from the
threads engine.
"""

from __future__ import annotations

import sys
import threading
import unittest
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial, wraps
from types import FrameType
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from phalanx.backend.devices.cuda_streams import default_backend
from phalanx.backend.session import RankContext, context_here
from phalanx.backend.stores.store import InProcessStore
from phalanx.backend.torch_patches import leave_groups
from phalanx.core.thread_pool import RankThreadPool
from phalanx.emulation.run_patches import patched
from phalanx.engines.rank_thread_pools import make_thread_pool
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.threads_engine import ThreadsEngine
from phalanx.errors import PhalanxError
from phalanx.model import Verdict
from phalanx.testing.torch_compat.cases import (
    DEFAULT_WORLD_SIZE,
    MAIN_RANK,
    TIMEOUT_DEFAULT,
    RanksTestCase,
    TestCase,
    check_spawned,
    get_timeout,
    ranks_of,
    replay_of,
    run_cleanups,
    test_name_of,
)
from phalanx.testing.torch_compat.equality import seed_torch
from phalanx.testing.torch_compat.outcomes import Ended, end_of, run_all, settle, warn_of
from phalanx.testing.torch_compat.shown_traceback import pytest_id

__unittest = True


class MultiThreadedTestCase(RanksTestCase):
    """Each test runs on `world_size` ranks, with a group of its own. `setUp` and `tearDown`
    run in the main thread, and `setUp` ends with `self._spawn_threads()`; `perThreadSetUp` and
    `perThreadTearDown` run in each rank, on the instance that runs the test there."""

    MAIN_THREAD_RANK = MAIN_RANK
    global_store: ClassVar[Any]

    def setUp(self) -> None:
        """In the main thread."""
        super().setUp()
        self.rank = self.MAIN_THREAD_RANK
        self.threads: list[Any] = []
        self._spawned = False

    def tearDown(self) -> None:
        """In the main thread."""
        super().tearDown()
        self.threads = []

    def perThreadSetUp(self) -> None:  # noqa: N802
        """In each rank, when its group is there."""

    def perThreadTearDown(self) -> None:  # noqa: N802
        """In each rank, when its group has been destroyed."""

    @property
    def world_size(self) -> int:
        return DEFAULT_WORLD_SIZE

    @property
    def _current_test_name(self) -> str:
        return test_name_of(self)

    def _spawn_threads(self) -> None:
        """Let this test run on ranks. They start when the test method is called."""
        type(self).global_store = _store_for(self)
        self._spawned = True

    def _join(self, fn: Callable[..., Any]) -> None:
        __tracebackhide__ = True
        check_spawned(self._spawned, "_spawn_threads")
        name, ranks = self._current_test_name, ranks_of(self.world_size)
        run_on_threads(
            lambda rank: type(self)._run(name, rank, ranks),
            ranks=ranks,
            limit=get_timeout(self.id()),
            replay=replay_of(self),
            test=fn,
            thread_pool=_thread_pool_of(type(self)),
            init=_lives_in_its_group(type(self)),
            store=self.global_store,
        )

    @classmethod
    def _run(cls, test_name: str, rank: int, world_size: int, **kwargs: Any) -> None:
        """A rank's part, on an instance of its own."""
        self = cls(test_name)
        self.rank = rank
        if hasattr(self, "_tls"):  # tests made for each device type keep tolerances by thread
            self._tls = threading.local()
            self._tls.precision = getattr(TestCase, "_precision", 0)
            self._tls.rel_tol = getattr(TestCase, "_rel_tol", 0)
        self.run_test_with_threaded_pg(test_name, rank, world_size)
        vars(self).pop(test_name, None)  # refers to the instance, which ends here

    def run_test_with_threaded_pg(self, test_name: str, rank: int, world_size: int) -> None:
        """Make the group, run the test, destroy the group, clean up."""
        if not dist.is_initialized():  # else the engine has made it
            join_group(rank, world_size, self.global_store)
        steps = [lambda: self.perThreadTearDown()]  # which the test may replace

        def live() -> None:
            try:
                self.perThreadSetUp()
            except BaseException:
                steps.clear()
                raise
            getattr(self, test_name)()

        run_all(
            live,
            lambda: leave_group(for_good=self._goes_on()),
            lambda: run_all(*steps),
            lambda: run_cleanups(self),
        )

    def _goes_on(self) -> bool:
        """Whether something is to run in this rank when its group is gone."""
        return bool(self._cleanups) or "perThreadTearDown" in vars(self)  # type: ignore[attr-defined]

    def assertEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:  # noqa: N802
        """Compare on one rank only."""
        __tracebackhide__ = True
        if self.rank == rank:
            self.assertEqual(x, y, msg)

    def assertNotEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:  # noqa: N802
        __tracebackhide__ = True
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)


def spawn_threads_and_init_comms(
    func: Callable[..., Any] | None = None,
    timeout: float = TIMEOUT_DEFAULT,
    world_size: int = DEFAULT_WORLD_SIZE,
) -> Any:
    """Run one test method on ranks, with a group of their own. All ranks are given the same
    `self`. Goes on a method as it is, or with arguments."""
    if func is None:
        return partial(spawn_threads_and_init_comms, timeout=timeout, world_size=world_size)

    @wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True

        def live(rank: int) -> None:
            run_all(lambda: func(self, *args, **kwargs), leave_group)

        is_case = isinstance(self, unittest.TestCase)
        run_on_threads(
            live,
            ranks=world_size,
            limit=timeout,
            replay=replay_of(self) if is_case else None,
            test=func,
            thread_pool=_thread_pool_of(type(self)) if is_case else None,
            init=True,
        )

    return wrapper


def join_group(rank: int, world_size: int, store: Any) -> None:
    """torch's threaded group takes tensors of any device, so this one does too."""
    dist.init_process_group(default_backend(), rank=rank, world_size=world_size, store=store)


def leave_group(*, for_good: bool = False) -> None:
    """Tests may have done so themselves. Unless it is `for_good`, because something is still to
    come that must find no group, the next test may have it if it is as new."""
    context = context_here()
    if context is not None and context.session.makes_world and not for_good:
        leave_groups(context)
    elif dist.is_initialized():
        dist.destroy_process_group()


def _store_for(case: MultiThreadedTestCase) -> Any:
    """That of the group which the next test is going to have, or a new one."""
    thread_pool = _thread_pools.get(type(case))
    with suppress(Exception):  # how many ranks there are may be known only later
        for session in thread_pool.groups_for_reuse.values() if thread_pool is not None else ():
            if session.size == int(case.world_size):
                return session.stores["init"]
    return InProcessStore()


def _lives_in_its_group(cls: type[MultiThreadedTestCase]) -> bool:
    """Whether nothing that a class adds runs in a rank before its group is there, or when it is
    gone. Then the engine makes the group, and hands it on from test to test."""
    added = ("__init__", "_run", "perThreadTearDown", "run_test_with_threaded_pg")
    return all(_function(cls, n) is _function(MultiThreadedTestCase, n) for n in added)


def _function(cls: type, name: str) -> Any:
    found = getattr(cls, name)
    return getattr(found, "__func__", found)


def run_on_threads(
    live: Callable[[int], Any],
    *,
    ranks: int,
    limit: float,
    replay: str | None,
    test: Callable[..., Any],
    thread_pool: RankThreadPool | None = None,
    init: bool = False,
    store: Any = None,
) -> None:
    """Call `live(rank)` on every rank and report the result to unittest. `init`: they have a
    default group by then, which meets in `store`. Blocks until all ranks have ended."""
    __tracebackhide__ = True
    ends: dict[int, Ended] = {}
    findings: list[Verdict] = []

    def main(context: RankContext) -> Ended:
        if context.rank:  # in torch's class ranks draw from one generator, so they differ
            seed_torch(torch.initial_seed() + context.rank)
        ends[context.rank] = end = end_of(lambda: live(context.rank))
        return end

    def run() -> list[Ended]:
        settings = Settings(
            ranks=ranks,
            limit=limit,
            init=init,
            store=store,
            replay=replay,
            as_torchrun=False,
            on_findings=findings.extend,
        )
        engine = ThreadsEngine(settings, thread_pool=thread_pool)
        try:
            return engine.run(main)
        except PhalanxError as error:
            error.returned = ends  # type: ignore[attr-defined]
            raise
        finally:
            engine.close()

    settle(run, test)
    warn_of(findings, test)


_thread_pools: dict[type, RankThreadPool] = {}


def _thread_pool_of(cls: type[unittest.TestCase]) -> RankThreadPool | None:
    """While the class runs: the threads of its ranks, and the patches of torch. Both take
    longer to set up than a small test takes. None for a test that runs by itself, without a
    suite or pytest, which tell a class when it is done."""
    if cls in _thread_pools:
        return _thread_pools[cls]
    if pytest_id() is None and not _in_suite():
        return None
    kept = ExitStack()
    kept.enter_context(patched())
    _thread_pools[cls] = thread_pool = make_thread_pool()
    kept.callback(thread_pool.close)

    def release() -> None:
        _thread_pools.pop(cls, None)
        kept.close()

    cls.addClassCleanup(release)
    return thread_pool


def _in_suite() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "unittest.suite":
        frame = frame.f_back
    return frame is not None
