"""The pytest plugin: `@pytest.mark.ranks(4)` runs a test on ranks.

Found by its entry point, so pytest loads this module in every project that has Phalanx
installed: it imports nothing heavy until a test with the marker is collected. Hooks and options
only; what they do is in the modules beside it, from `items.py` on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from typing import Any, NoReturn

import pytest

from phalanx.engines.terminal import remember_terminal
from phalanx.errors import UsageError
from phalanx.kinds import check_profile, parse_checks
from phalanx.testing.pytest.expected_findings import EXPECT, EXPECT_HELP, SILENCE, SILENCE_HELP
from phalanx.testing.pytest.marker import (
    MARKER_HELP,
    PARAMETER,
    REPORTS,
    WORLD_SIZE_HELP,
    Given,
    Plan,
    Ranks,
    check_engines,
    check_sizes,
    find_conflict,
    find_plan,
    is_about_ranks,
    is_ranks_marker,
)
from phalanx.testing.pytest_compat.pytest_private import Failed, in_rank, leave_asserts_alone
from phalanx.testing.pytest_compat.pytest_private_calls import marks_by_call, plan_anew

_given = pytest.StashKey[Given]()

remember_terminal()  # pytest, which captures, puts standard input away after this

# -- options ----------------------------------------------------------------------------------

OPTIONS = (
    ("ranks", "N[,M]", "run tests marked with ranks on so many ranks, whatever they ask for"),
    ("ranks-engine", "NAMES", "threads, processes, or both with a comma between them"),
    ("ranks-backend", "NAME", "the backend of the default group, e.g. gloo"),
    ("ranks-seed", "S", "order in which threads run; 0: in order, others: a schedule each"),
    ("ranks-checks", "KINDS", "all, none, or kinds of findings: mismatch,leak or all,-leak"),
    ("ranks-profile", "NAME", "gloo or nccl: what may fail on that backend is an error"),
    ("ranks-timeout", "SEC", "seconds for a whole test on ranks, 0: no limit (default 300)"),
    ("ranks-report", "HOW", "all (default): every different failure; first; concise"),
)

UNSAID = "where the marker does not say"
INI_HELP = {
    "ranks": f"{UNSAID}, that is in ranks(): on how many ranks, e.g. 2,4",
    "ranks-report": f"default of --ranks-report: {OPTIONS[-1][-1]}",
}
"""An option is stronger than the marker, an ini setting is weaker: texts that must differ."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    leave_asserts_alone(pluginmanager)
    group = parser.getgroup("phalanx", "tests on ranks (Phalanx)")
    for name, metavar, text in OPTIONS:
        dest = name.replace("-", "_")
        group.addoption(f"--{name}", metavar=metavar, dest=dest, default=None, help=text)
        parser.addini(dest, INI_HELP.get(name, f"{UNSAID}: {text}"), default="")
    text = "what is only a warning of Phalanx's checks fails the test"
    group.addoption("--ranks-strict", action="store_true", dest="ranks_strict", help=text)
    parser.addini("ranks_strict", f"{UNSAID}: {text}", "bool", default=False)
    for name, text in (
        ("per_rank", "fixtures that every rank makes for itself, whatever their scope"),
        ("shared", "fixtures that are made once per test, whatever their scope"),
    ):
        parser.addini(f"ranks_{name}", text, "args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    config.addinivalue_line("markers", WORLD_SIZE_HELP)
    config.addinivalue_line("markers", EXPECT_HELP)
    config.addinivalue_line("markers", SILENCE_HELP)
    try:
        config.stash[_given] = _read_options(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def _read_options(config: pytest.Config) -> Given:
    sizes, engines, options = _parse(config.getoption, "--ranks", "-")
    default_sizes, default_engines, defaults = _parse(config.getini, "ranks", "_")
    if config.getoption("ranks_strict"):
        options["strict"] = True
    defaults["strict"] = bool(config.getini("ranks_strict"))
    for name in ("per_rank", "shared"):
        defaults[name] = tuple(config.getini(f"ranks_{name}"))
    return Given(sizes, engines, options, default_sizes, default_engines, defaults)


def _parse(
    read: Any, prefix: str, joint: str
) -> tuple[tuple[int, ...], tuple[str, ...], dict[str, Any]]:
    """Options and ini settings have the same names but for the joint, and the same values."""
    sizes: tuple[int, ...] = ()
    engines: tuple[str, ...] = ()
    values: dict[str, Any] = {}
    if text := read("ranks"):
        where = f"{prefix} {text}"
        sizes = check_sizes(
            [_number(each, where, "2,4") for each in text.split(",")], where, "2,4"
        )
    if text := read("ranks_engine"):
        engines = check_engines(text.split(","), f"{prefix}{joint}engine {text}")
    if text := read("ranks_backend"):
        values["backend"] = text
    if text := read("ranks_seed"):
        values["seed"] = _number(text, f"{prefix}{joint}seed {text}", "7")
    if text := read("ranks_checks"):
        values["checks"] = text
        parse_checks(text, where=f"{prefix}{joint}checks {text}")
    if text := read("ranks_profile"):
        values["profile"] = text
        check_profile(text, where=f"{prefix}{joint}profile {text}")
    if text := read("ranks_timeout"):
        values["timeout"] = _seconds(text, f"{prefix}{joint}timeout {text}")
    report = read("ranks_report")
    if report and report not in REPORTS:
        raise UsageError(f"{prefix}{joint}report {report}: choose {', '.join(REPORTS)}")
    return sizes, engines, values


def _number(text: str, where: str, example: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{where}: whole numbers are needed, e.g. {example}") from None


def _seconds(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{where}: seconds are needed, e.g. 30") from None


# -- collection -------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, Any, Any]:
    """Sizes are a parameter, the first one. Markers in `pytest.param` are known when all other
    parameters are."""
    own = _closest_first(metafunc.definition)
    ways, problem = _ways(own, metafunc)
    if ways:
        metafunc.fixturenames.append(PARAMETER)
        values = [pytest.param(way, marks=marks) for _, way, marks in ways]
        metafunc.parametrize(PARAMETER, values, ids=[each for each, *_ in ways], indirect=True)
    result = yield
    marked = [any(map(is_about_ranks, marks)) for marks in marks_by_call(metafunc)]
    if problem and not (marked and all(marked)):
        _fail(metafunc, problem)
    if any(marked):
        plan_anew(metafunc, PARAMETER, ways, lambda marks: _ways_of_call(marks, own, metafunc))
    return result


def _ways(
    markers: Sequence[pytest.Mark], metafunc: pytest.Metafunc
) -> tuple[list[tuple[str, Ranks, list[pytest.Mark]]], str | None]:
    """All the ways to run a test with these markers, with their ids and marks; or what is
    wrong with them."""
    try:
        plan = find_plan(markers, metafunc.config.stash[_given])
        if plan is None:
            return [], None
        _check(plan)
    except UsageError as error:
        return [], str(error)
    return [
        (each, way, _lacks_gpu(way)) for each, way in zip(plan.ids, plan.ways, strict=True)
    ], None


def _ways_of_call(
    marks: Sequence[pytest.Mark], own: Sequence[pytest.Mark], metafunc: pytest.Metafunc
) -> Any:
    """None if its parameters say nothing. What they say in vain is told when it is to run:
    other calls of the same test are in order."""
    if not any(map(is_about_ranks, marks)):
        return None
    ways, problem = _ways([*marks, *own], metafunc)
    if problem:
        _fail(metafunc, problem)
    if conflict := find_conflict(marks, metafunc.config.stash[_given]):
        return [("ranks=?", conflict, [])]
    return ways or None


def _fail(metafunc: pytest.Metafunc, problem: str) -> NoReturn:
    pytest.fail(f"{metafunc.definition.nodeid}: {problem}", pytrace=False)


def _closest_first(node: Any) -> list[pytest.Mark]:
    """Also within a class: pytest lists the marks of its bases before its own."""
    return [mark for each in reversed(node.listchain()) for mark in reversed(each.own_markers)]


def _check(plan: Plan) -> None:
    """What only torch and this Python know; a test on ranks needs torch anyway."""
    from phalanx.engines.engine import check_here

    for way in plan.ways:
        check_here(way)


def _lacks_gpu(way: Ranks) -> list[pytest.Mark]:
    """A test that asks for GPUs which are not here is skipped, as is usual for tests."""
    if way.device != "cuda" and way.gpus is None:
        return []
    from phalanx.engines.engine import check_gpus

    try:
        check_gpus(way)
    except UsageError as error:
        return [pytest.mark.skip(reason=str(error)).mark]
    return []


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-k` takes no "=": let it choose by `ranks4`, and by engine whatever the id says."""
    way = _way(item)
    if way is not None:
        item.extra_keyword_matches.update((f"ranks{way.size}", way.engine))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Before the first test, not in it: the imports, and leaving all that is there by now out
    of garbage collection. torch alone is half a million objects, and looking through them
    takes as long as a hundred small tests."""
    engines = {way.engine for item in session.items if (way := _way(item)) is not None}
    config = session.config
    if config.getoption("collectonly") or in_rank in config.stash:
        return
    if engines or any(map(_is_ours, {getattr(each, "cls", None) for each in session.items})):
        from phalanx.testing.pytest_compat.pytest_private_logs import quicken_logs

        quicken_logs(config)
    if not engines:
        return
    import gc
    from importlib import import_module

    for engine in engines:
        import_module(f"phalanx.testing.pytest.on_{engine}")
    import_module("phalanx.testing.pytest.items")
    for engine in engines:
        _loaded(f"on_{engine}").begin()
    gc.freeze()
    config.add_cleanup(gc.unfreeze)


def pytest_report_collectionfinish(items: Sequence[pytest.Item]) -> str | None:
    """Nothing is wrong with the tests then, but they run as often as torchrun started us."""
    times = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" not in os.environ or times == "1" or not any(map(_way, items)):
        return None
    return (
        f"torchrun has started pytest {times} times, and each runs all tests, on ranks of its "
        "own; to run them once, start pytest without torchrun"
    )


def _way(item: Any) -> Ranks | None:
    callspec = getattr(item, "callspec", None)
    way = None if callspec is None else callspec.params.get(PARAMETER)
    return way if isinstance(way, Ranks) else None


# -- running ----------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    way = _way(item)
    if way is None:
        _refuse_conflict(item)
        _refuse_lost_marker(item)
        return (yield from _name_who_asks(item, None))
    from phalanx.testing.pytest import items

    _refuse_async(item)
    _refuse_trace(item, way)
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


def _refuse_conflict(item: Any) -> None:
    callspec = getattr(item, "callspec", None)
    conflict = None if callspec is None else callspec.params.get(PARAMETER)
    if conflict is not None:
        pytest.fail(conflict, pytrace=False)


def _refuse_async(item: Any) -> None:
    import inspect

    if inspect.iscoroutinefunction(item.obj) or inspect.isasyncgenfunction(item.obj):
        pytest.fail(
            "an async test cannot run on ranks: torch.distributed blocks, and would block the "
            "event loop; write an ordinary function, with asyncio.run(...) inside if need be",
            pytrace=False,
        )


def _refuse_trace(item: Any, way: Ranks) -> None:
    if way.engine != "threads" and item.config.getoption("trace"):
        pytest.fail(
            "--trace stops at the first line of a test, in a debugger; ranks that are "
            "processes have no terminal for it; run the test with --ranks-engine threads",
            pytrace=False,
        )


def _refuse_lost_marker(item: Any) -> None:
    """pytest does not parametrise tests of unittest's classes, so the marker would be lost."""
    mark = next((each for each in item.iter_markers() if is_ranks_marker(each)), None)
    if mark is None and not isinstance(item, pytest.DoctestItem):
        for own in getattr(getattr(item, "obj", None), "pytestmark", ()):
            if own.name in (EXPECT, SILENCE):
                pytest.fail(
                    f"@pytest.mark.{own.name} is about tests on ranks; put "
                    f"@pytest.mark.ranks(N) on {item.nodeid} as well",
                    pytrace=False,
                )
    if mark is None or isinstance(item, pytest.DoctestItem):
        return
    own = getattr(item, "cls", None)
    if _is_ours(own):
        return  # it has its own way to say it
    why = (
        "pytest cannot run this kind of test on ranks. Write a function or a plain class, or "
        "derive from phalanx.testing.MultiThreadedTestCase"
    )
    is_unittest = "unittest" in sys.modules and issubclass(
        own or object, sys.modules["unittest"].TestCase
    )
    if isinstance(item, pytest.Function) and not is_unittest:
        why = (
            "it came after the test was collected. Put it on the function, the class, the "
            "module (pytestmark) or a parameter (pytest.param)"
        )
    pytest.fail(
        f"@pytest.mark.{mark.name} has no effect on {item.nodeid}: {why}", pytrace=False
    )


def _is_ours(cls: type | None) -> bool:
    """Whether it is a test class for ranks, of `phalanx.testing`."""
    bases = getattr(cls, "__mro__", ())
    return any(base.__module__.startswith("phalanx.testing") for base in bases)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        logs = sys.modules.get("phalanx.testing.pytest_compat.pytest_private_logs")
        if logs is not None:
            logs.leave_logs(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        if _way(item) is not None and (items := _loaded("items")) is not None:
            items.forget(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    __tracebackhide__ = True
    way = _way(pyfuncitem)
    if way is None:
        return None
    from phalanx.testing.pytest import items

    items.call(pyfuncitem, way)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if _way(item) is None or call.when != "call":
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
        following = None if nextitem is None else _way(nextitem)
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
    if (processes := _loaded("on_processes")) is not None:
        processes.close_engines()


def pytest_sessionstart(session: pytest.Session) -> None:
    """`--pdb` opens a debugger where the frames are, not in vain where they are not."""
    plugins = session.config.pluginmanager
    invoke = plugins.get_plugin("pdbinvoke")
    if invoke is not None:
        plugins.unregister(invoke)
        plugins.register(_PdbOnThreads(invoke), "pdbinvoke")


class _PdbOnThreads:
    """pytest's own plugin for `--pdb`, except for tests whose ranks are processes."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self.pytest_internalerror = original.pytest_internalerror

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        way = _way(node)
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


def _loaded(name: str) -> Any:
    """One of our modules that need torch, if a test has needed it."""
    return sys.modules.get(f"phalanx.testing.pytest.{name}")


# -- fixtures ---------------------------------------------------------------------------------


class _OnlyOnRanks(Failed):
    """Somebody asks for a fixture of ours where there is no rank."""

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


# Made by `standins.py` in the rank. Session scope, so that fixtures of any scope that ask for
# them get to the text above instead of an error about scopes.


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
