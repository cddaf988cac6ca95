"""Run a test on ranks that are threads of pytest's process.

Used by `items.py`. Patches that runs need stay in place from one such test to the next, because
installing them takes longer than a small test.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, Protocol

from phalanx.backend.session import RankContext
from phalanx.backend.torch_patches import leave_groups
from phalanx.core import lock_watch
from phalanx.core.strand import here
from phalanx.core.thread_pool import RankThreadPool
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.emulation.random.randomness import sources
from phalanx.emulation.run_patches import patched
from phalanx.engines.rank_thread_pools import make_thread_pool
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.threads_engine import ThreadsEngine
from phalanx.journal.writer import JournalWriter
from phalanx.testing.collection.marker import Ranks
from phalanx.testing.pytest.fixtures import FixturePlan
from phalanx.testing.pytest.item_run import RanksRun
from phalanx.testing.pytest.part import RankPart
from phalanx.testing.pytest.rank_record import Record
from phalanx.testing.pytest.world_fixture import rank_world
from phalanx.testing.pytest_compat import pytest_private as private
from phalanx.testing.pytest_compat.captured_output import RankLogs, Streams
from phalanx.testing.pytest_compat.fixture_standins import (
    PLAIN_MAKERS,
    THREAD_MAKERS,
    SharedPatches,
    SharedPlace,
)
from phalanx.testing.pytest_compat.mocks import patches_by_rank, undo_rest_of_mocks


class JournalTaker(Protocol):
    """Wants the journal of each run, as a recording does."""

    def follow(self, journal: JournalWriter) -> None: ...


_between_tests = ExitStack()
_thread_pools: list[RankThreadPool] = []


def begin() -> None:
    """Once, before the first test: what is done once per process for torch's modules and the
    generators, which takes some milliseconds. Nothing else stays: fixtures of the first test
    may patch what ranks need patched, and must find it unpatched."""
    with patched():
        sources()


def hold_patches() -> RankThreadPool:
    """The patches for ranks, and their threads."""
    if not _thread_pools:
        _between_tests.enter_context(patched())
        _between_tests.enter_context(patches_by_rank())
        _thread_pools.append(make_thread_pool())
        _between_tests.callback(_thread_pools[0].close)
        _between_tests.callback(lock_watch.keep())
    return _thread_pools[0]


def release_patches() -> None:
    _between_tests.close()
    _thread_pools.clear()


def run_on_threads(
    item: Any,
    way: Ranks,
    *,
    shared: Mapping[tuple[str, int], Any],
    extra: Mapping[str, Any],
    replay: str,
    recording: JournalTaker,
    settings: Mapping[str, Any] = MappingProxyType({}),
    is_shown: bool = True,
) -> RanksRun:
    """Run the test once on all ranks. Returns the ranks' records and the error of the run.
    `settings` are fields of `Settings` that stand in for those that follow from the test;
    without `is_shown` what ranks print is only kept."""
    test = _TestOnThreads(item, way, shared, extra, is_shown=is_shown)
    return test.run(replay, hold_patches(), recording, settings)


class _TestOnThreads:
    """One run of one test."""

    def __init__(
        self,
        item: Any,
        way: Ranks,
        shared: Mapping[tuple[str, int], Any],
        extra: Mapping[str, Any],
        *,
        is_shown: bool,
    ) -> None:
        self._way = way
        self._extra = extra
        self._records: dict[int, Record] = {}
        self._streams = Streams(way.size, item.config, is_shown=is_shown)
        self._logs = RankLogs.of(item.config, way.size)
        self._patches = SharedPatches()
        self._place = SharedPlace(self._streams, self._logs, self._patches)
        self._tasks = FixtureTasks(item)
        self._plan = FixturePlan(
            item,
            way,
            shared=shared,
            makers=THREAD_MAKERS,
            plain=PLAIN_MAKERS,
            ask=self._tasks.ask,
        )

    def run(
        self,
        replay: str,
        thread_pool: RankThreadPool,
        recording: JournalTaker,
        settings: Mapping[str, Any],
    ) -> RanksRun:
        way = self._way
        given = {
            "checks": way.effective_checks,
            "replay": replay,
            "on_tick": self._tick,
            "on_journal": recording.follow,
            "modules": IsolationRule(way.isolate) if way.isolate else None,
            **settings,
        }
        engine = ThreadsEngine(Settings.of(way, **given), thread_pool=thread_pool)
        error: BaseException | None = None
        search_path = list(sys.path)
        _running.append(self._streams)
        try:
            with self._streams, self._logs:
                engine.run(self._body)
        except BaseException as problem:
            error = problem
        finally:
            _running.pop()
            engine.close()
            self._patches.undo_rest()
            undo_rest_of_mocks()
            if sys.path != search_path:
                sys.path[:] = search_path
        records = [self._records.get(rank) or Record(rank) for rank in range(way.size)]
        self._collect_output(records)
        run = RanksRun(records, error, engine.findings, engine.silenced)
        run.journal, run.fingerprint = engine.journal, engine.fingerprint
        return run

    def _body(self, context: RankContext) -> None:
        __tracebackhide__ = True
        way, rank = self._way, context.rank
        world = rank_world(rank, way.size, way.engine, way.backend, way.seed, way.device)
        part = RankPart(
            self._plan,
            world,
            extra=self._extra,
            tell=context.tell_failure or _tell_nobody,
            place=self._place,
        )
        self._records[rank] = part.record
        part.run()
        part.dissolve()
        leave_groups(context)

    def _tick(self) -> None:
        self._streams.tick()
        self._tasks.run_waiting()

    def _collect_output(self, records: list[Record]) -> None:
        out, err = self._streams.collected
        for record in records:
            record.out = out.text(record.rank)
            record.err = err.text(record.rank)
            record.log = self._logs.text(record.rank)


def _tell_nobody(error: BaseException) -> None:
    """Do nothing: the engine gets the error when the part ends."""


_running: list[Streams] = []


def enter_debugger() -> None:
    """A rank with a prompt waits for its user: no other rank runs meanwhile."""
    if here.strand is not None:
        here.strand.baton.frozen = True


def leave_debugger() -> None:
    """pytest has its streams back; put those of the ranks there again."""
    if here.strand is not None:
        here.strand.baton.frozen = False
        if _running:
            _running[-1].install()


class FixtureTasks:
    """Shared fixtures that a rank asks for by name while it runs: pytest makes them in the
    thread it runs in, which has the time."""

    def __init__(self, item: Any) -> None:
        self._item = item
        self._waiting: SimpleQueue[tuple[Callable[[], Any], list[Any], threading.Event]] = (
            SimpleQueue()
        )

    def ask(self, name: str) -> Any:
        answer: list[Any] = []
        done = threading.Event()
        self._waiting.put((lambda: private.make_in_main(self._item, name), answer, done))
        done.wait()
        value, error = answer
        if error is not None:
            raise error
        return value

    def run_waiting(self) -> None:
        while True:
            try:
                make, answer, done = self._waiting.get_nowait()
            except Empty:
                return
            try:
                answer += [make(), None]
            except BaseException as error:
                answer += [None, error]
            done.set()
