"""The second plugin: hooks and fixtures for a run of pytest that has tests on ranks.

`plugin.py` registers this module when it collects the first such test. The hooks leave ordinary
tests alone. What is kept from one test on ranks to the next (log handlers, frozen garbage
collection, patches, threads) is put away before an ordinary test begins.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from phalanx.core import lock_watch
from phalanx.engines.terminal import remember_terminal
from phalanx.testing.collection.marker import Ranks
from phalanx.testing.collection.rank_parameters import (
    add_late_parameter,
    add_parameter,
    plan_late_items,
    plan_marked_calls,
    way_of,
)
from phalanx.testing.collection.refused_tests import (
    is_rank_class,
    refuse_lost_marker,
    refuse_on_ranks,
)
from phalanx.testing.pytest_compat import pytest_private as private
from phalanx.testing.pytest_compat.pytest_private_logs import QuickLogs

__all__ = [
    "add_late_parameter",
    "add_parameter",
    "begin",
    "finish_collection",
    "plan_late_items",
    "plan_marked_calls",
]


class _RankTests:
    """What one run of pytest keeps while tests on ranks follow each other."""

    def __init__(self, config: pytest.Config) -> None:
        self._logs = QuickLogs(config)
        self._are_on = False
        self._froze = False
        self._places: dict[int, int] = {}

    def place_of(self, item: Any) -> int:
        """Where it stands among all."""
        if len(self._places) != len(item.session.items):
            self._places = {id(each): n for n, each in enumerate(item.session.items)}
        return self._places.get(id(item), len(self._places))

    def turn_to(self, item: Any) -> None:
        """The next test begins."""
        if way_of(item) is None and not is_rank_class(getattr(item, "cls", None)):
            self.end()
        elif not self._are_on:
            self._are_on = True
            # torch alone is half a million objects, and looking through them takes as long as
            # a hundred small tests. What somebody has frozen before stays so, as it is.
            self._froze = not gc.get_freeze_count()
            if self._froze:
                gc.freeze()
            self._logs.begin()

    def end(self) -> None:
        if self._are_on:
            self._are_on = False
            self._logs.end()
            if self._froze:
                gc.unfreeze()


_rank_tests = pytest.StashKey[_RankTests]()


def begin(config: pytest.Config) -> None:
    """Called once per run of pytest, before this plugin is registered."""
    config.stash[_rank_tests] = _RankTests(config)
    remember_terminal(private.standard_stream(config, 0))
    lock_watch.error_output = private.standard_stream(config, 2)
    plugins = config.pluginmanager
    invoke = plugins.get_plugin("pdbinvoke")
    if invoke is not None:
        plugins.unregister(invoke)
        plugins.register(_PdbOnThreads(invoke), "pdbinvoke")


# -- collection -------------------------------------------------------------------------------


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-k` takes no "=": let it choose by `ranks4`, and by engine whatever the id says."""
    way = way_of(item)
    if way is not None:
        item.extra_keyword_matches.update((f"ranks{way.size}", way.engine))


def finish_collection(session: pytest.Session) -> None:
    """Import what the tests need before the first of them, not in it."""
    if session.config.getoption("collectonly") or private.in_rank in session.config.stash:
        return
    _check_replay(session)
    engines = {way.engine for item in session.items if (way := way_of(item)) is not None}
    if engines:
        import_module("phalanx.testing.pytest.items")
    for engine in engines:
        import_module(f"phalanx.testing.pytest.on_{engine}").begin()


def _check_replay(session: pytest.Session) -> None:
    """A token is that of one test."""
    token = session.config.getoption("ranks_replay")
    ways = [way for item in session.items if (way := way_of(item)) is not None]
    explored = [way for way in ways if way.explore is not None]
    if token and len(explored) != 1:
        raise pytest.UsageError(
            f"--ranks-replay {token}: it is the token of one test on ranks that are threads, "
            f"and {len(explored)} are chosen; name the one that it was reported with, e.g. "
            f'pytest "test_queue.py::test_it[ranks=4]" --ranks-replay {token}'
        )


def pytest_report_collectionfinish(items: Sequence[pytest.Item]) -> str | None:
    """Nothing is wrong with the tests then, but they run as often as torchrun started us."""
    times = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" not in os.environ or times == "1" or not any(map(way_of, items)):
        return None
    return (
        f"torchrun has started pytest {times} times, and each runs all tests, on ranks of its "
        "own; to run them once, start pytest without torchrun"
    )


# -- running ----------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        session.config.stash[_rank_tests].end()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    item.config.stash[_rank_tests].turn_to(item)
    lock_watch.about_test = partial(_about, item)
    try:
        return (yield)
    finally:
        if way_of(item) is not None and (items := _loaded("items")) is not None:
            items.forget(item)
        lock_watch.about_test = dict


def _about(item: pytest.Item) -> dict[str, Any]:
    """For a report that is made when pytest itself can do nothing any more. A worker of
    pytest-xdist is replaced, and the other tests run in the next one."""
    if hasattr(item.config, "workerinput"):
        return {"test": item.nodeid}
    after = item.session.items[item.config.stash[_rank_tests].place_of(item) + 1 :]
    reporter = item.config.pluginmanager.get_plugin("terminalreporter")
    failed = getattr(reporter, "stats", {}).get("failed", [])
    return {"test": item.nodeid, "after": _named(after), "failed": _named(failed)}


def _named(tests: Sequence[Any]) -> tuple[list[str], int]:
    """The first of these, and how many they are."""
    return [each.nodeid for each in tests[: lock_watch.MOST_TESTS]], len(tests)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    way = way_of(item)
    if way is None:
        refuse_lost_marker(item)
        return (yield from _name_who_asks(item, None))
    from phalanx.testing.pytest import items

    refuse_on_ranks(item, way)
    items.prepare(item, way)
    result = yield from _name_who_asks(item, way)
    items.take_shared(item, way)
    return result


def _name_who_asks(item: Any, way: Ranks | None) -> Generator[None, Any, Any]:
    """pytest keeps the error of a fixture for whoever asks next, so it names nobody."""
    try:
        return (yield)
    except _OnlyOnRanks as error:
        from phalanx.testing.pytest.fixtures import askers

        who, text = askers(item, error.name, way), str(error)
    pytest.fail(f"{text}. Here {who} asks for it" if who else text, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    __tracebackhide__ = True
    way = way_of(pyfuncitem)
    if way is None:
        return None
    from phalanx.testing.pytest import items

    items.call(pyfuncitem, way)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if way_of(item) is None or call.when != "call":
        return (yield)
    from phalanx.testing.pytest import items

    items.judge_xfail(item)
    report = yield
    items.set_place_of_skip(item, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, Any, Any]:
    """Threads and patches are kept for a next test that needs them too."""
    try:
        result = yield
    except (KeyboardInterrupt, pytest.exit.Exception):
        raise
    except Exception:
        if failed := _end_wide(item, nextitem):
            item.add_report_section("teardown", "error of ranks", failed)
        raise
    else:
        if failed := _end_wide(item, nextitem):
            pytest.fail(failed, pytrace=False)
        return result
    finally:
        following = None if nextitem is None else way_of(nextitem)
        if following is None or following.engine != "threads":
            _release()


def _end_wide(item: pytest.Item, nextitem: pytest.Item | None) -> str:
    processes, items = _loaded("on_processes"), _loaded("items")
    if processes is None or items is None:
        return ""
    return str(processes.end_wide(nextitem, lambda: items.replay(item)))


def _release() -> None:
    if (threads := _loaded("on_threads")) is not None:
        threads.release_patches()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    _release()
    lock_watch.error_output = None
    if (processes := _loaded("on_processes")) is not None:
        processes.close_engines()


def _loaded(name: str) -> Any:
    """One of the modules that run tests, if a test has needed it."""
    return sys.modules.get(f"phalanx.testing.pytest.{name}")


# -- debuggers --------------------------------------------------------------------------------


class _PdbOnThreads:
    """pytest's own plugin for `--pdb`, except for tests whose ranks are processes: their frames
    are gone."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self.pytest_internalerror = original.pytest_internalerror

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        way = way_of(node)
        if way is None or way.engine == "threads":
            self._original.pytest_exception_interact(node, call, report)
            return
        reporter = node.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(
                f"\nno debugger for {node.nodeid}: its ranks were processes, whose frames are "
                "gone; run it with --ranks-engine threads"
            )


def pytest_enter_pdb() -> None:
    if (threads := _loaded("on_threads")) is not None:
        threads.enter_debugger()


def pytest_leave_pdb() -> None:
    if (threads := _loaded("on_threads")) is not None:
        threads.leave_debugger()


# -- fixtures ---------------------------------------------------------------------------------


class _OnlyOnRanks(private.Failed):
    """A fixture of ours is asked for where there is no rank."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the fixture {name!r} is a rank's own: it is there in tests marked with "
            "@pytest.mark.ranks(N), and in fixtures that each rank makes (function scope, or "
            "@phalanx.testing.once_per_rank)",
            pytrace=False,
        )
        self.name = name


_OnlyOnRanks.__module__, _OnlyOnRanks.__name__ = "builtins", "Failed"  # as pytest's own


def _only_on_ranks(name: str) -> Any:
    raise _OnlyOnRanks(name)


# `fixture_standins.py` makes these in the rank. They have session scope here, so that fixtures
# of any scope that ask for them get to the text above instead of an error about scopes.


@pytest.fixture(scope="session")
def rank() -> int:
    """The number of the rank that runs this part of the test."""
    return int(_only_on_ranks("rank"))


@pytest.fixture(scope="session")
def world_size() -> int:
    """How many ranks the test runs on."""
    return int(_only_on_ranks("world_size"))


@pytest.fixture(scope="session")
def device() -> Any:
    """The `torch.device` for this rank's tensors."""
    return _only_on_ranks("device")


@pytest.fixture(scope="session")
def world() -> Any:
    """The rank's world: `rank`, `size`, `engine`, `backend`, `seed`, `device`, `barrier()`,
    `gather(value)`."""
    return _only_on_ranks("world")


@pytest.fixture
def rank_tmp_path(tmp_path: Any) -> Any:
    """A folder of this rank's own, inside `tmp_path`, which all ranks of the test share."""
    return _only_on_ranks("rank_tmp_path")


@pytest.fixture
def _phalanx_ranks(request: pytest.FixtureRequest) -> Ranks:
    """How the item runs; read from its parameters."""
    way: Ranks = request.param
    return way
