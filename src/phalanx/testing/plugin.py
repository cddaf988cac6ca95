"""The pytest plugin: `@pytest.mark.ranks(4)` runs a test on ranks.

pytest finds this module by its entry point and loads it in every project that has Phalanx
installed. It declares options, ini settings and markers, looks for tests on ranks while pytest
collects, and sums up at the end what was explored. The first such test registers
`testing/pytest/rank_hooks.py`, which has all other hooks and the fixtures. A run without such a
test is the same as without Phalanx.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Sequence
from importlib import import_module
from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.testing.pytest_compat.pytest_private_calls import (
    LATE_MARKS,
    add_late_fixtures,
    marks_by_call,
    unknown_fixtures,
)

# -- declarations -----------------------------------------------------------------------------

OPTIONS = (
    ("ranks", "N[,M]", "run tests marked with ranks on so many ranks, whatever they ask for"),
    ("ranks-engine", "NAMES", "threads, processes, or both with a comma between them"),
    ("ranks-backend", "NAME", "the backend of the default group, e.g. gloo"),
    ("ranks-seed", "S", "order in which threads run; 0: in order, others: a schedule each"),
    ("ranks-checks", "KINDS", "all, none, or kinds of findings: mismatch,leak or all,-leak"),
    ("ranks-profile", "NAME", "gloo or nccl: what may fail on that backend is an error"),
    ("ranks-timeout", "SEC", "seconds for a whole test on ranks, 0: no limit (default 300)"),
    (
        "ranks-explore",
        "N",
        "run each test in N orders that differ; or on, off, 'seconds=10, strategy=pct', ...",
    ),
    ("ranks-record", "DIR[,failed]", "write what ranks do into a file for each test"),
    ("ranks-report", "HOW", "all (default): every different failure; first; concise"),
)

UNSAID = "where the marker does not say"
INI_HELP = {
    "ranks": f"{UNSAID}, that is in ranks(): on how many ranks, e.g. 2,4",
    "ranks-report": f"default of --ranks-report: {OPTIONS[-1][-1]}",
}
"""An option is stronger than the marker, an ini setting is weaker: texts that must differ."""

MARKERS = {
    "ranks": (
        "ranks(*sizes, engine=None, backend=None, init=True, device=None, gpus=None, "
        "timeout=None, seed=None, clock=None, compute=None, network=None, checks=None, "
        "strict=None, profile=None, completion=None, faults=(), explore=None, isolate=(), "
        "record=None, record_limit=256, per_rank=(), shared=()): run the test on so many "
        "ranks, once for each size (Phalanx)."
    ),
    "world_size": "world_size(N): the same as ranks(N) (Phalanx).",
    "ranks_expect": (
        "ranks_expect(*kinds, reason): the test on ranks passes only if Phalanx's checks find "
        "these kinds, e.g. 'deadlock' (Phalanx)."
    ),
    "ranks_silence": (
        "ranks_silence(*kinds, reason): Phalanx's checks do not look for these kinds in the "
        "test, e.g. 'leak' (Phalanx)."
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("phalanx", "tests on ranks (Phalanx)")
    for name, metavar, text in OPTIONS:
        dest = name.replace("-", "_")
        group.addoption(f"--{name}", metavar=metavar, dest=dest, default=None, help=text)
        parser.addini(dest, INI_HELP.get(name, f"{UNSAID}: {text}"), default="")
    text = "repeat the run of a test that an exploration has reported with this token"
    group.addoption("--ranks-replay", metavar="TOKEN", dest="ranks_replay", help=text)
    text = "warnings of Phalanx's checks fail the test"
    group.addoption("--ranks-strict", action="store_true", dest="ranks_strict", help=text)
    parser.addini("ranks_strict", f"{UNSAID}: {text}", "bool", default=False)
    for name, text in (
        ("per_rank", "fixtures that every rank makes for itself, whatever their scope"),
        ("shared", "fixtures that are made once per test, whatever their scope"),
    ):
        parser.addini(f"ranks_{name}", text, "args", default=[])
    text = "tests that use a fixture run on ranks, a line for each: dist_env: 4, init=False"
    parser.addini("ranks_for_fixture", text, "linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Raise a `pytest.UsageError` for an option or ini setting of ours that is wrong."""
    for text in MARKERS.values():
        config.addinivalue_line("markers", text)
    names = [name.replace("-", "_") for name, *_ in OPTIONS]
    given = any(config.getoption(name) or config.getini(name) for name in names)
    if given or config.getoption("ranks_replay") or config.getini("ranks_for_fixture"):
        from phalanx.testing.collection.given_options import given_of

        try:
            given_of(config)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
    _tell_the_run(config)


def _tell_the_run(config: pytest.Config) -> None:
    """Where this pytest is the program of `phalanx run`, its hooks tell the run about tests."""
    runs = sys.modules.get("phalanx.engines.suite_of_run")
    suite = None if runs is None else runs.active()
    if suite is not None and suite.enter():
        hooks = import_module("phalanx.testing.suite_hooks")
        config.pluginmanager.register(hooks.SuiteHooks(suite), "phalanx-suite")


# -- looking for tests on ranks ---------------------------------------------------------------

RANK_HOOKS = "phalanx-ranks"
"""The name of the second plugin."""

FIXTURES = frozenset({"rank", "world_size", "device", "world", "rank_tmp_path"})
"""What it provides. A test that asks for one of them that nobody else provides is told why it
cannot have it."""


def _register_rank_hooks(config: pytest.Config) -> Any:
    """Return the second plugin; register it unless it is."""
    plugins = config.pluginmanager
    hooks = plugins.get_plugin(RANK_HOOKS)
    if hooks is None:
        private = import_module("phalanx.testing.pytest_compat.pytest_private")
        private.leave_asserts_alone(plugins)
        hooks = import_module("phalanx.testing.pytest.rank_hooks")
        hooks.begin(config)
        plugins.register(hooks, RANK_HOOKS)
        calls = import_module("phalanx.testing.pytest_compat.pytest_private_calls")
        calls.put_behind_others(plugins.get_plugin("funcmanage"), FIXTURES, hooks.__name__)
    return hooks


def _is_about_ranks(marks: Iterable[pytest.Mark]) -> bool:
    return any(mark.name in MARKERS for mark in marks)


def _has_fixture_on_ranks(metafunc: pytest.Metafunc) -> bool:
    """Whether the ini file has a line about a fixture of the test, or it is planned anew."""
    config = metafunc.config
    if LATE_MARKS in config.stash:
        return True
    lines = config.getini("ranks_for_fixture")
    return any(line.partition(":")[0].strip() in metafunc.fixturenames for line in lines)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, Any, Any]:
    """Make the number of ranks the first parameter of a test on ranks. Marks of `pytest.param`
    are known when all other parameters are."""
    if _is_about_ranks(metafunc.definition.iter_markers()) or _has_fixture_on_ranks(metafunc):
        hooks = _register_rank_hooks(metafunc.config)
        add_late_fixtures(metafunc, FIXTURES)
        return (yield from hooks.add_parameter(metafunc))
    result = yield
    if _is_about_ranks(metafunc.definition.iter_markers()):
        hooks = _register_rank_hooks(metafunc.config)
        add_late_fixtures(metafunc, FIXTURES)
        hooks.add_late_parameter(metafunc)
    elif any(map(_is_about_ranks, marks_by_call(metafunc))):
        hooks = _register_rank_hooks(metafunc.config)
        add_late_fixtures(metafunc, FIXTURES)
        hooks.plan_marked_calls(metafunc)
    elif not FIXTURES.isdisjoint(unknown_fixtures(metafunc)):
        _register_rank_hooks(metafunc.config)
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Markers that came after a test was collected count, too."""
    if config.pluginmanager.has_plugin(RANK_HOOKS) or _has_rank_tests(items):
        _register_rank_hooks(config).plan_late_items(items)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Also where workers of pytest-xdist have run the tests. Without a test that was explored
    this writes nothing."""
    reports = [
        each
        for name in ("passed", "failed", "xfailed", "xpassed")
        for each in terminalreporter.stats.get(name, ())
        if getattr(each, "user_properties", None)
    ]
    if reports:
        summary = import_module("phalanx.testing.exploring.explored_summary")
        for line in summary.summary_lines(reports):
            terminalreporter.write_line(line)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Find what `pytest_generate_tests` is not called for: tests of our unittest classes, other
    kinds of items, markers that came later."""
    plugins = session.config.pluginmanager
    if plugins.has_plugin(RANK_HOOKS) or _has_rank_tests(session.items):
        _register_rank_hooks(session.config).finish_collection(session)


def _has_rank_tests(items: Sequence[pytest.Item]) -> bool:
    nodes = {node for item in items for node in item.listchain()}
    if any(_is_about_ranks(node.own_markers) for node in nodes):
        return True
    classes = {getattr(item, "cls", None) for item in items}
    return any(
        base.__module__.startswith("phalanx.testing")
        for cls in classes
        for base in getattr(cls, "__mro__", ())
    )
