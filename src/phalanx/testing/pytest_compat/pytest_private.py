"""Every private name of pytest that we touch, each with its reason and the versions it is in.

Used by the other modules of the pytest plugin, and imported only by them, since pytest need not
be installed. Checked with pytest 8.2 to 9.2.
"""

from __future__ import annotations

import copy
import inspect
import io
import logging
import os
import pdb
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest import (
    assertion,
    debugging,
    fixtures,
    terminal,
    threadexception,
    unraisableexception,
)
from _pytest import config as configuration
from _pytest import warnings as recorded_warnings
from _pytest._code import code
from _pytest.compat import NOTSET
from _pytest.logging import (
    LogCaptureFixture,
    LogCaptureHandler,
    caplog_handler_key,
    caplog_records_key,
    catching_logs,
)
from _pytest.outcomes import Exit, Failed, OutcomeException, XFailed
from _pytest.scope import Scope
from _pytest.skipping import xfailed_key

from phalanx.emulation.patch_installer import Patch, put_in, replaced
from phalanx.emulation.patch_table import RANK_PROCESS
from phalanx.engines.terminal import on_quit, set_trace
from phalanx.errors import text_of

try:
    from _pytest import subtests as _subtests  # from 9.0 on
except ImportError:  # pragma: no cover
    _subtests = None  # type: ignore[assignment]

# What `pytest.exit`, `pytest.xfail` and their like raise; all derive from BaseException.
__all__ = [
    "Exit",
    "Failed",
    "LogCaptureHandler",
    "OutcomeException",
    "XFailed",
]

# -- fixtures -------------------------------------------------------------------------------


class RequestBase(fixtures.FixtureRequest):
    """What a fixture gets as `request` in a rank. Derived from pytest's own class, so that
    fixtures that look at its type are content, but made without its constructor, which refuses
    callers that are not pytest. Its properties read `_pyfuncitem` and `_fixture_defs`."""

    def __init__(self, name: str | None, stack: Sequence[Any]) -> None:
        unchecked: Any = self
        unchecked.fixturename = name
        unchecked._arg2fixturedefs = {}
        unchecked._fixture_defs = {}
        self.stack = stack

    @property
    def _scope(self) -> Scope:
        return Scope.Function

    def _check_scope(self, *_: Any, **__: Any) -> None:
        """A rank has one scope only."""

    @property  # type: ignore[misc]
    def _pyfuncitem(self) -> Any:
        return self.own_node()

    def own_node(self) -> Any:
        raise NotImplementedError

    @property
    def node(self) -> Any:
        return self.own_node()

    def _get_fixturestack(self) -> list[Any]:
        """For the text of a `FixtureLookupError`."""
        return list(self.stack)

    def addfinalizer(self, finalizer: Callable[[], object]) -> None:
        raise NotImplementedError


def fixture_definitions(item: Any, name: str) -> Sequence[Any]:
    """The fixtures of this name that the item sees, the closest one last. pytest has computed
    those that are known at collection; `getfixturevalue` may name others."""
    known = item._fixtureinfo.name2fixturedefs.get(name)
    if known is None:
        known = item.session._fixturemanager.getfixturedefs(name, item)
    return known or ()


def argument_names(item: Any) -> Sequence[str]:
    """The fixtures that the test function itself asks for."""
    names: Sequence[str] = item._fixtureinfo.argnames
    return names


def is_direct_parameter(definition: Any) -> bool:
    """Whether this stands for a plain value of `parametrize`."""
    return getattr(definition.func, "__name__", "") == "get_direct_param_fixture_func"


def lookup_error(name: str, request: Any) -> Exception:
    return fixtures.FixtureLookupError(name, request)


def shown_without_traceback(error: BaseException) -> str:
    """All its frames are ours: the text, and for a fixture that is not there what there is."""
    if isinstance(error, fixtures.FixtureLookupError):
        return str(error.formatrepr())
    return f"{type(error).__name__}: {text_of(error)}"


def is_lookup_error(error: BaseException) -> bool:
    """One that cannot be shown without the request it was raised by."""
    return isinstance(error, fixtures.FixtureLookupError)


def message_of(error: BaseException) -> str:
    """The text of an error; that of a missing fixture would show our request."""
    if isinstance(error, fixtures.FixtureLookupError) and error.msg is None:
        return f"fixture {error.argname!r} not found"
    return text_of(error)


def call_fixture(definition: Any, request: Any, arguments: Mapping[str, Any]) -> Any:
    """Call the fixture's function, bound to the instance of the test class; of a generator,
    what it yields, and a finalizer is added to the request."""
    function = fixtures.resolve_fixture_function(definition, request)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        pytest.fail(
            f"the fixture {definition.argname!r} is async; ranks cannot make async fixtures. "
            "Make it an ordinary one, e.g. with asyncio.run(...) inside",
            pytrace=False,
        )
    return fixtures.call_fixture_func(function, request, dict(arguments))


def make_overridden(item: Any, definition: Any) -> Any:
    """The value of a fixture that a closer one of the same name hides from pytest's setup."""
    request = fixtures.SubRequest(
        item._request, definition._scope, NOTSET, 0, definition, _ispytest=True
    )
    return definition.execute(request=request)


def make_in_main(item: Any, name: str) -> Any:
    """`request.getfixturevalue` of the item itself."""
    return item._request.getfixturevalue(name)


# -- assertions -----------------------------------------------------------------------------


def leave_asserts_alone(plugins: Any) -> None:
    """Because we are a plugin, pytest would rewrite every `assert` in Phalanx as if it were a
    test's, which takes about a second the first time. Ours are invariants."""
    names: set[str] = getattr(plugins.rewrite_hook, "_must_rewrite", set())
    names.discard("phalanx")


# -- standard streams -----------------------------------------------------------------------


def standard_stream(config: Any, number: int) -> int:
    """The descriptor of what was standard input (0) or standard error (2) when pytest began.
    While it captures, that number is something else, and it keeps a copy."""
    manager = config.pluginmanager.get_plugin("capturemanager")
    name = {0: "in_", 2: "err"}[number]
    capture = getattr(getattr(manager, "_global_capturing", None), name, None)
    return int(getattr(capture, "targetfd_save", number))


# -- items ----------------------------------------------------------------------------------


def rank_node(
    item: Any, arguments: dict[str, Any], add_finalizer: Callable[[Any], None]
) -> Any:
    """The item as a rank sees it: with its own instance of the class, arguments and
    finalizers, its own stash with what the item's has, and all else shared. pytest keeps these
    in private attributes."""
    node = copy.copy(item)
    node.stash = pytest.Stash()
    node.stash._storage.update(item.stash._storage)
    node.user_properties = list(item.user_properties)
    node._report_sections = list(item._report_sections)
    node.own_markers = list(item.own_markers)
    node._known = len(node.user_properties), len(node._report_sections), list(item.own_markers)
    node.funcargs = arguments
    node.addfinalizer = add_finalizer
    node.__dict__.pop("repr_failure", None)  # ours, for the whole test
    if isinstance(item.parent, pytest.Class):
        node._instance = item.parent.obj()
        node._obj = getattr(node._instance, item.originalname)
    return node


def added_to(node: Any) -> tuple[list[Any], list[tuple[str, str, str]], list[Any]]:
    """The properties, the sections of its report and the marks that a test has given a
    `rank_node`."""
    properties, sections, marks = node._known
    added = [(str(w), str(k), str(text)) for w, k, text in node._report_sections[sections:]]
    new = [each for each in node.own_markers if not any(each is mark for mark in marks)]
    return node.user_properties[properties:], added, new


def wide_setups(item: Any) -> dict[str, Any]:
    """The fixtures that pytest makes of `setup_class`, `setup_module` and the like, with a key
    that is the same in every process."""
    found = {}
    for name in getattr(item, "fixturenames", ()):
        if name.startswith("_xunit_setup_"):
            for definition in fixture_definitions(item, name)[-1:]:
                if definition.scope != "function":
                    found[f"{definition.baseid}: {name}"] = definition
    return found


def hide_from_hypothesis(item: Any, own: Iterable[str]) -> None:
    """Hypothesis refuses fixtures of function scope, since they are not made anew for each
    example; those that ranks make are. To see the scope it asks the item's request for the
    fixture, which would make it, here: let it find one of wider scope there."""
    for name in own:
        for definition in fixture_definitions(item, name)[-1:]:
            shown = copy.copy(definition)
            shown._scope = Scope.Session
            item._request._fixture_defs[name] = shown


# -- monkeypatch ----------------------------------------------------------------------------


def patches_of(patch: pytest.MonkeyPatch) -> tuple[tuple[str, list[tuple[Any, Any, Any]]], ...]:
    """What a `MonkeyPatch` has changed: owner, name and what it found there, by kind."""
    made: Any = patch
    return (("attribute", made._setattr), ("item", made._setitem))


def is_own_environment(owner: Any) -> bool:
    return owner is os.environ


def keep_only(patch: pytest.MonkeyPatch, kept: Sequence[tuple[str, Any, Any, Any]]) -> None:
    """Let `undo` put back only these (the last one first) and the environment."""
    for kind, made in patches_of(patch):
        environment = [each for each in made if is_own_environment(each[0])]
        shared = [(owner, name, found) for k, owner, name, found in reversed(kept) if k == kind]
        made[:] = [*environment, *shared]


def put_back(kind: str, owner: Any, name: Any, found: Any) -> None:
    """As the `undo` of a patch does."""
    patch = pytest.MonkeyPatch()
    dict(patches_of(patch))[kind].append((owner, name, found))
    patch.undo()


# -- logging --------------------------------------------------------------------------------


def log_handlers(config: Any) -> tuple[logging.Handler, ...]:
    """The handlers with which pytest collects a test's records, for `caplog` and reports."""
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    return () if plugin is None else (plugin.caplog_handler, plugin.report_handler)


def new_log_handlers(config: Any) -> tuple[LogCaptureHandler, LogCaptureHandler] | None:
    """The same two, for one rank."""
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    if plugin is None:
        return None
    made = (LogCaptureHandler(), LogCaptureHandler())
    for handler in made:
        handler.setFormatter(plugin.formatter)
        if plugin.log_level is not None:
            handler.setLevel(plugin.log_level)
    return made


def go_to_end_of_log_file(config: Any) -> None:
    """After ranks that are processes have written to it, too."""
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    stream = None if plugin is None else plugin.log_file_handler.stream
    if stream is not None and stream.seekable():
        stream.seek(0, io.SEEK_END)


def provide_log_handler(node: Any, handler: LogCaptureHandler, records: Any) -> None:
    """Where `caplog` looks for its records, all of them and by the phase of the test."""
    node.stash[caplog_handler_key] = handler
    node.stash[caplog_records_key] = records


class RankLogCapture(LogCaptureFixture):  # type: ignore[misc]
    """`caplog` of a rank that is a thread. Levels of loggers are everybody's: `levels` keeps
    what they were before any rank changed them, because ranks put them back in any order."""

    def __init__(self, node: Any, levels: dict[Any, int]) -> None:
        super().__init__(node, _ispytest=True)
        self._levels = levels

    def set_level(self, level: int | str, logger: str | None = None) -> None:
        found = logging.getLogger(logger)
        self._levels.setdefault(found, found.level)
        super().set_level(level, logger)

    def finish(self) -> None:
        self._finalize()


# -- reports --------------------------------------------------------------------------------

ChainRepr = code.ExceptionChainRepr
FileLocation = code.ReprFileLocation


def native_text(text: str) -> Any:
    """Text as a part of a failure's representation, which xdist and junit can carry."""
    return code.ReprTracebackNative([text if text.endswith("\n") else text + "\n"])


def no_text() -> Any:
    return code.ReprTracebackNative([])


def parts_of(representation: Any) -> list[tuple[Any, Any, str | None]]:
    """The links of an exception chain, whatever `repr_failure` returned."""
    if isinstance(representation, code.ExceptionChainRepr):
        return list(representation.chain)
    if isinstance(representation, code.ExceptionRepr):
        return [(representation.reprtraceback, representation.reprcrash, None)]
    return [(native_text(str(representation)), None, None)]


def crash_of(representation: Any) -> Any:
    return getattr(representation, "reprcrash", None)


def call_info(when: Any, error: BaseException | None) -> Any:
    """A `CallInfo` as subtests need one."""
    from _pytest.runner import CallInfo

    info = None if error is None else pytest.ExceptionInfo.from_exception(error)
    return CallInfo(None, info, start=0.0, stop=0.0, duration=0.0, when=when, _ispytest=True)


def subtest_report(report: Any, message: str | None, values: Mapping[str, Any]) -> Any | None:
    """The report of a subtest, made from one of a test; None before pytest 9."""
    if _subtests is None:
        return None
    shown = {name: _AsItIs(value) for name, value in values.items()}
    context = _subtests.SubtestContext(msg=message, kwargs=shown)
    return _subtests.SubtestReport._new(report, context, None, None)


class _AsItIs(str):
    """The `repr` of a value that is in a rank: pytest takes its `repr` once more."""

    def __repr__(self) -> str:
        return str(self)


def xfail_allows(item: Any) -> Callable[[BaseException], bool] | None:
    """Which errors the item's `xfail` mark covers, as pytest decides it; None without one. It
    keeps the mark's values in the stash, where it finds them when it makes the report."""
    mark = item.stash.get(xfailed_key, None)
    if mark is None or item.config.option.runxfail:
        return None
    raises = mark.raises
    if raises is None:
        return lambda error: True
    if hasattr(raises, "matches"):  # `pytest.RaisesExc`, from 8.4 on
        return lambda error: bool(raises.matches(error))
    return lambda error: isinstance(error, raises)


def drop_xfail(item: Any) -> None:
    """Let the next report be made as if there were no such mark."""
    item.stash[xfailed_key] = None


def count_failed_subtest(item: Any) -> None:
    """A test with failed subtests fails itself: pytest counts them here, by the node's id."""
    if _subtests is not None:
        key = getattr(item, "id", item.nodeid)
        item.config.stash[_subtests.failed_subtests_key][key] += 1


# -- a pytest inside a rank's process ---------------------------------------------------------

NOT_IN_RANKS: Mapping[str, Any] = {
    "cacheclear": False,
    "capture": "no",  # what a rank prints goes to the program at once
    "collectonly": False,
    "deselect": None,
    "dist": "no",
    "durations": None,
    "failedfirst": False,
    "keyword": "",
    "lf": False,
    "log_file_mode": "a",  # the program has begun it
    "markexpr": "",
    "maxfail": 0,
    "newfirst": False,
    "numprocesses": None,
    "setuponly": False,
    "setupplan": False,
    "setupshow": False,
    "stepwise": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}
"""Options that are about a whole run, and what they are in a rank, which has a test to find."""


in_rank = pytest.StashKey[bool]()
"""In the stash of the `Config` of a rank's session."""


class RankSession:
    """A session of pytest in a rank's process, made from the command line of the program's.
    It collects the files of the tests it is to run a part of, and runs none by itself. This is
    how xdist makes its workers, too."""

    def __init__(self, args: Sequence[str], worker: Any) -> None:
        self.problems: list[str] = []
        self.warnings: list[Any] = []
        self._items: dict[str, Any] = {}
        # Under `-W error` that modules are there before pytest would be an error.
        hook = assertion.rewrite.AssertionRewritingHook
        silence = (hook, "_warn_already_imported", lambda *_: None)
        with self._quiet(), replaced(RANK_PROCESS, [silence]):
            self.config = configuration._prepareconfig([*args], [self])
            self.config.stash[in_rank] = True
            for name, value in NOT_IN_RANKS.items():
                if hasattr(self.config.option, name):
                    setattr(self.config.option, name, value)
            if not hasattr(self.config.option, "log_file_mode"):  # pytest 8.0
                self.config.option.log_file = os.devnull
            if worker is not None:
                self.config.workerinput = worker  # type: ignore[attr-defined]
            self.session = pytest.Session.from_config(self.config)
            self.config._do_configure()
            # Explained assertions need a terminal reporter before pytest 8.4, but a mute one.
            self.config.pluginmanager.unregister(name="terminalreporter")
            mute = terminal.TerminalReporter(self.config, io.StringIO())
            self.config.pluginmanager.register(mute, "terminalreporter")
            self.config.hook.pytest_sessionstart(session=self.session)
        stop = set_trace[0] if set_trace else _no_terminal
        patches: list[Patch] = [
            (pdb, "set_trace", stop),
            (pytest, "set_trace", stop),
            (debugging.pytestPDB, "set_trace", staticmethod(stop)),
        ]
        if not set_trace:
            patches.append((sys, "breakpointhook", sys.__breakpointhook__))  # asks for pdb's
        put_in(RANK_PROCESS, patches)
        on_quit[:] = [partial(pytest.exit, "Quitting debugger")]  # as pytest's own

    def close(self) -> None:
        with self._quiet():
            self.config._ensure_unconfigure()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """What collecting prints and warns of, the program has shown already."""
        nowhere = io.StringIO()
        with (
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            warnings.catch_warnings(record=True),
        ):
            yield

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.problems.append(str(report.longrepr))

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        self.warnings.append(warning_message)

    def item(self, file: str, nodeid: str) -> Any | None:
        """The item of this id; the file is collected if it has not been."""
        if nodeid not in self._items:
            self.problems.clear()
            with self._quiet():
                assertion.pytest_collection(self.session)
                found = self.session.perform_collect([file])
            self._items.update((each.nodeid, each) for each in found)
        return self._items.get(nodeid)

    @property
    def nodeids(self) -> Iterable[str]:
        """Of what has been collected."""
        return self._items

    @contextmanager
    def around(self, item: Any) -> Iterator[list[Any]]:
        """What pytest does around each test: comparisons are explained, warnings recorded in
        the list that this gives."""
        self.warnings.clear()
        explained = assertion.pytest_runtest_protocol(item)
        next(explained)
        try:
            with recorded_warnings.catch_warnings_for_item(
                config=item.config, ihook=item.ihook, when="runtest", item=item
            ):
                yield self.warnings
                _warn_of_lost_errors(item.config)
        finally:
            with suppress(StopIteration):
                explained.send(None)


def _warn_of_lost_errors(config: Any) -> None:
    """What threads and finalizers have raised. pytest looks for it after each phase of a test;
    before 8.4 it has no such functions, and nothing is said in a rank."""
    for module, name in (
        (threadexception, "collect_thread_exception"),
        (unraisableexception, "collect_unraisable"),
    ):
        collect = getattr(module, name, None)
        if collect is not None and config.pluginmanager.is_registered(module):
            collect(config)


def _no_terminal(*args: Any, **kwargs: Any) -> None:
    """For `breakpoint()` and `pytest.set_trace()` in a rank's process."""
    pytest.fail(
        "breakpoint() in a rank that is a process, which has no terminal to open a debugger "
        "at; run pytest from a terminal (without -n), or the test with --ranks-engine threads",
        pytrace=False,
    )


def share_base_folder(config: Any, folder: str) -> None:
    """Let `tmp_path_factory` make its folders where the program's makes them."""
    folder_factory(config)._basetemp = Path(folder)


def folder_factory(config: Any) -> Any:
    return config._tmp_path_factory


def base_folder(config: Any) -> str | None:
    factory = getattr(config, "_tmp_path_factory", None)
    return None if factory is None else str(factory.getbasetemp())


@contextmanager
def logs_caught(config: Any, provide: Callable[[Any], None]) -> Iterator[Callable[[], str]]:
    """Collect what is logged, for `caplog`, whose handler `provide` gets, and for the report;
    gives the text so far."""
    made = new_log_handlers(config)
    if made is None:
        yield str
        return
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    provide(made[0])
    with (
        catching_logs(made[0], level=plugin.log_level),
        catching_logs(made[1], level=plugin.log_level),
        catching_logs(plugin.log_file_handler, level=plugin.log_file_level),
    ):
        yield lambda: str(made[1].stream.getvalue())
