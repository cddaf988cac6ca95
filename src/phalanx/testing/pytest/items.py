"""A test item on ranks, from pytest's setup to its report.

Used by the hooks in `plugin.py`, which import this module when the first such item runs,
because it needs torch.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import HazardError, PhalanxWarning, UsageError
from phalanx.model import rank_list
from phalanx.report.text import render_kind
from phalanx.testing.collection.expected_findings import missing_text, told_of, verdicts_of
from phalanx.testing.collection.marker import PARAMETER, Ranks
from phalanx.testing.pytest.fixtures import per_rank_names, shared_values
from phalanx.testing.pytest.isolated import warn_of_bound_names
from phalanx.testing.pytest.item_failure import show_alike, show_failure
from phalanx.testing.pytest.item_recording import ItemRecording
from phalanx.testing.pytest.item_run import RanksRun
from phalanx.testing.pytest.on_processes import run_on_processes
from phalanx.testing.pytest.on_threads import run_on_threads
from phalanx.testing.pytest.rank_record import Record, Subtest
from phalanx.testing.pytest_compat import pytest_private as private
from phalanx.testing.pytest_compat.hypothesis_examples import (
    call_for_examples,
    drawn_of,
    prepare_item,
)

_ready = pytest.StashKey[tuple[set[str], dict[tuple[str, int], Any]]]()
_last_run = pytest.StashKey[RanksRun]()

POSITIONS = "interrupted; each rank was at"


# -- setup ----------------------------------------------------------------------------------


def prepare(item: Any, way: Ranks) -> None:
    """Before pytest's setup of the item: fixtures that ranks make are not for pytest."""
    _check_names(item, way)
    warn_of_bound_names(item, way.isolate)
    own = per_rank_names(item, way)
    item.stash[_ready] = (own, {})
    for name in own:
        item.funcargs[name] = None


def _check_names(item: Any, way: Ranks) -> None:
    """Those of the ini file are for all tests, also for some that know no such fixture."""
    for keyword, names in (("per_rank", way.per_rank), ("shared", way.shared)):
        for name in sorted(set(names).difference(item.config.getini(f"ranks_{keyword}"))):
            if not private.fixture_definitions(item, name):
                pytest.fail(f"{keyword}={name!r}: there is no such fixture here", pytrace=False)


def take_shared(item: Any, way: Ranks) -> None:
    """After pytest's setup: what the ranks get from it."""
    own, _ = item.stash[_ready]
    item.stash[_ready] = (own, shared_values(item, own, way))
    if drawn_of(item.obj) is not None:
        private.hide_from_hypothesis(item, own)
        prepare_item(item)


# -- the call -------------------------------------------------------------------------------


def call(item: Any, way: Ranks) -> None:
    """Run the test on its ranks. Raises its failure or skip. Blocks until all ranks have
    ended."""
    __tracebackhide__ = True
    own, _ = item.stash[_ready]
    try:
        if drawn_of(item.obj) is None:
            _call_once(item, way, {})
        else:
            named = private.argument_names(item)
            call_for_examples(item, named, own, partial(_call_once, item, way))
    finally:
        if _last_run in item.stash:  # of many examples, that of the one that is shown
            _add_sections(item, item.stash[_last_run])


def _call_once(item: Any, way: Ranks, extra: Mapping[str, Any]) -> None:
    __tracebackhide__ = True
    _, shared = item.stash[_ready]
    if way.explore is not None:
        _explore(item, way, shared)
        return
    on_ranks = run_on_threads if way.engine == "threads" else run_on_processes
    again = replay(item)
    recording = ItemRecording(item, way, again)
    with recording:
        run = on_ranks(item, way, shared=shared, extra=extra, replay=again, recording=recording)
    recording.end(run)
    item.repr_failure = partial(_represent, item, run, recording)
    _tell(item, run)
    found = _found_as_expected(item, way, run) if way.expected else False
    if not found:
        _raise(item, run)
    recording.passed()


def _explore(item: Any, way: Ranks, shared: Mapping[tuple[str, int], Any]) -> None:
    """Run the test in many orders, and let pytest tell of one run."""
    __tracebackhide__ = True
    from phalanx.testing.exploring.explored_failure import show_explored
    from phalanx.testing.exploring.explored_item import ExploredItem

    explored = ExploredItem(item, way, shared, replay(item))
    try:
        explored.explore()
    except UsageError as error:
        _refuse(str(error))
    run = explored.shown
    if explored.failures:
        item.repr_failure = partial(_represent_explored, item, explored, show_explored)
    _tell(item, run)
    if explored.failures:
        raise run.raised or explored.failures[0].error
    if explored.run_decides:
        _raise(item, run)


def _represent_explored(item: Any, explored: Any, show: Any, excinfo: Any) -> Any:
    first = explored.failures[0]
    if excinfo.value not in (explored.shown.raised, first.error):
        return type(item).repr_failure(item, excinfo)
    explored.keep_recording()
    return show(explored, report=_report_mode(item))


def _tell(item: Any, run: RanksRun) -> None:
    """What pytest reports of a run besides its failure."""
    item.stash[_last_run] = run
    for record in run.records:
        item.own_markers += [m for m in record.marks if not _is_among(m, item.own_markers)]
    _add_properties(item, run)
    _record_for_junit(item, run)
    _tell_subtests(item, run)


def _found_as_expected(item: Any, way: Ranks, run: RanksRun) -> bool:
    """Whether the ranks ended by an error that the test expects. A test that expects one and
    finds none fails; other findings and errors are reported as usual."""
    __tracebackhide__ = True
    kinds = {kind for kind, _ in way.expected}
    failures = [each for each in (run.cause, *run.others) if each is not None]
    found = [*verdicts_of(run.error), *run.findings]
    foreign = any(
        each.phase == "teardown" or not {v.kind for v in verdicts_of(each.error)} & kinds
        for each in failures
    )
    missing = not kinds <= {each.kind for each in found}
    told = (missing_text if missing else told_of)(way.expected, found)
    strictly = isinstance(run.error, HazardError) and {each.kind for each in found} - kinds
    fails = run.interrupt is not None or foreign or strictly or (run.error and missing)
    if not fails and missing and len(run.skipped) < len(run.records):
        _refuse(told)
    item.add_report_section("call", "expected", told)
    if fails:
        return False
    run.findings = [each for each in run.findings if each.kind not in kinds]
    return run.error is not None


def _raise(item: Any, run: RanksRun) -> None:
    __tracebackhide__ = True
    interrupt = run.interrupt
    if isinstance(interrupt, UsageError):
        _refuse(str(interrupt))
    if isinstance(interrupt, KeyboardInterrupt) and interrupt is run.error:
        _show_positions(item)
        _raise_in_test(item, interrupt)
    if interrupt is not None:
        raise interrupt
    if run.raised is not None:
        raise run.raised
    if run.error is not None:
        raise run.error
    if len(run.skipped) == len(run.records):
        raise pytest.skip.Exception(run.skip_reason(), _use_item_location=True)
    for each in run.findings:
        item.warn(PhalanxWarning(render_kind(each), each))
    returned = next((each.returned for each in run.records if each.returned), None)
    if returned is not None:
        text = f"{item.nodeid} returned {returned} on a rank; use `assert`, not `return`"
        item.warn(pytest.PytestReturnNotNoneWarning(text))


def _show_positions(item: Any) -> None:
    """Where each rank was. The engine has printed it, and pytest, which shows nothing that it
    has captured once a run is interrupted, has caught that."""
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    reporter = item.config.pluginmanager.get_plugin("terminalreporter")
    if capture is None or reporter is None:
        return
    _, start, text = (capture.read_global_capture().err or "").rpartition(POSITIONS)
    if start:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"{start}{text}".rstrip())


def _raise_in_test(item: Any, error: BaseException) -> None:
    """pytest shows the last line of the traceback, which is one of ours; the interrupted lines
    of the test belong to other threads or processes."""
    line = item.location[1] or 0
    code = compile("\n" * line + "raise error", str(item.path), "exec")
    exec(code, {"error": error.with_traceback(None)})


def _refuse(text: str) -> None:
    """pytest needs a frame that is not hidden to show nothing but the text."""
    pytest.fail(text, pytrace=False)


def replay(item: Any) -> str:
    """The command that runs this item again, with what was said about ranks."""
    config = item.config
    if _said not in config.stash:
        config.stash[_said] = _options_said(config)
    return " ".join([f"pytest {_for_shell(_shown_id(item))}", *config.stash[_said]])


_said = pytest.StashKey[list[str]]()


_odd = re.compile(r"[\"$`\\!]|[^\x00-\x7f]").search


def _for_shell(text: str) -> str:
    """As an argument of a command, in ASCII as the rest of a report."""
    if _odd(text) is None:
        return f'"{text}"'
    if not text.isascii():
        plain = text.replace("\\", r"\\").replace("'", r"\'")
        data = plain.encode("utf-8", "surrogateescape")
        return "$'" + "".join(chr(n) if n < 128 else f"\\x{n:02x}" for n in data) + "'"
    return shlex.quote(text)


def _options_said(config: Any) -> list[str]:
    given = [
        f"--ranks-{name}" if value is True else f"--ranks-{name} {value}"
        for name in ("engine", "backend", "seed", "checks", "profile", "strict", "timeout")
        if (value := config.getoption(f"ranks_{name}", None))
    ]
    sizes = config.getoption("ranks", None)
    return [*([f"--ranks {sizes}"] if sizes else []), *given]


def _shown_id(item: Any) -> str:
    """As it must be written on the command line, relative to where pytest was started. Not by
    pytest's own function for this, which wants another type from 9.2 on."""
    start = item.config.invocation_params.dir
    if start == item.config.rootpath:
        return str(item.nodeid)
    with suppress(ValueError):  # two drives of Windows
        file = Path(os.path.relpath(item.path, start)).as_posix()
        return "::".join([file, *item.nodeid.split("::")[1:]])
    return str(item.nodeid)


# -- other things that pytest reports ---------------------------------------------------------


def _add_sections(item: Any, run: RanksRun) -> None:
    silent = not any(record.out or record.err or record.log for record in run.records)
    for key in () if silent else ("stdout", "stderr", "log"):
        texts: dict[str, list[int]] = {}
        for record in run.records:
            if text := _text(record, key):
                texts.setdefault(text, []).append(record.rank)
        for text, ranks in texts.items():
            item.add_report_section(f"call, {rank_list(ranks)}", key, text)
    added: dict[tuple[str, str, str], list[int]] = {}
    for record in run.records:
        for section in record.sections:
            added.setdefault(section, []).append(record.rank)
    for (when, key, text), ranks in added.items():
        alike = len(set(ranks)) == len(run.records)
        item.add_report_section(when if alike else f"{when}, {rank_list(ranks)}", key, text)
    if run.skipped and len(run.skipped) < len(run.records):
        item.add_report_section("call", "skips", run.skip_reason())
    for kind, reason in item.callspec.params[PARAMETER].silenced:
        item.add_report_section("call", "silenced", f"[{kind}]: {reason}")
    for each in run.silenced:
        text = f"[{each.kind}] at {each.site}: {each.reason}"
        item.add_report_section("call", "silenced", text)


def _text(record: Record, key: str) -> str:
    return {"stdout": record.out, "stderr": record.err, "log": record.log.strip()}[key]


def _add_properties(item: Any, run: RanksRun) -> None:
    """Once where all ranks have recorded the same, else with the rank in the name."""
    kept: dict[tuple[str, str], tuple[Any, list[int]]] = {}
    for record in run.records:
        for name, value in record.properties:
            kept.setdefault((name, repr(value)), (value, []))[1].append(record.rank)
    for (name, _), (value, ranks) in kept.items():
        alike = len(set(ranks)) == len(run.records)
        item.user_properties.append((name if alike else f"{name}[{rank_list(ranks)}]", value))


def _record_for_junit(item: Any, run: RanksRun) -> None:
    """Once for all ranks that have recorded the same, by pytest's own fixtures."""
    told: dict[tuple[str, str, str], Any] = {}
    for record in run.records:
        for fixture, name, value in record.for_junit:
            told.setdefault((fixture, name, repr(value)), value)
    for (fixture, name, _), value in told.items():
        private.make_in_main(item, fixture)(name, value)


def _tell_subtests(item: Any, run: RanksRun) -> None:
    blocks: dict[tuple[Any, ...], list[Subtest]] = {}
    for record in run.records:
        for each in record.subtests:
            key = (each.message, tuple(each.values.items()))
            blocks.setdefault(key, []).append(each)
    for alike in blocks.values():
        _tell_subtest(item, run, alike)


def _tell_subtest(item: Any, run: RanksRun, alike: list[Subtest]) -> None:
    failed = [each.failure for each in alike if each.failure is not None]
    failed.sort(key=lambda each: (each.verdict, each.when))  # the cause first
    error = failed[0].error if failed else None
    if error is None and all(each.end == "skipped" for each in alike):
        error = pytest.skip.Exception(alike[0].reason, _use_item_location=True)
    expected = next((each for each in alike if each.end == "stopped"), None)
    if error is None and expected is not None:
        error = private.XFailed(expected.reason)
    with _as_raised(error):
        report = item.ihook.pytest_runtest_makereport(
            item=item, call=private.call_info("call", error)
        )
    if failed:
        report.longrepr = show_alike(failed, len(run.records))
    made = private.subtest_report(report, alike[0].message, alike[0].values)
    if made is None:
        return
    if made.failed:  # not if an `xfail` mark covers it
        private.count_failed_subtest(item)
    capman = item.config.pluginmanager.get_plugin("capturemanager")
    with capman.global_and_fixture_disabled() if capman is not None else nullcontext():
        item.ihook.pytest_runtest_logreport(report=made)


@contextmanager
def _as_raised(error: BaseException | None) -> Iterator[None]:
    """An error needs a traceback for pytest to make a report of it."""
    if error is not None and error.__traceback__ is None:
        try:
            raise error
        except BaseException:
            pass
    yield


def _represent(item: Any, run: RanksRun, recording: ItemRecording, excinfo: Any) -> Any:
    """What pytest asks the item for when its call has failed."""
    if run.cause is None or excinfo.value is not run.raised:
        return type(item).repr_failure(item, excinfo)
    recording.keep(run)
    return show_failure(run, report=_report_mode(item), replay=replay(item))


def _report_mode(item: Any) -> str:
    if item.config.getoption("tbstyle", "auto") == "line":
        return "line"
    return str(item.config.getoption("ranks_report") or item.config.getini("ranks_report"))


def judge_xfail(item: Any) -> None:
    """Before the report of the call: pytest compares only the error that came first with what
    an `xfail` mark covers."""
    run = item.stash.get(_last_run, None)
    allows = private.xfail_allows(item)
    if run is None or allows is None:
        return
    added = [mark for record in run.records for mark in record.marks]
    whole = not all(_is_among(mark, added) for mark in item.iter_markers("xfail"))
    marked = [r.rank for r in run.records if any(mark.name == "xfail" for mark in r.marks)]
    if run.is_beyond(allows, None if whole else marked):
        private.drop_xfail(item)


def _is_among(mark: Any, marks: list[Any]) -> bool:
    """Those of processes are copies. What a mark holds may not be comparable, as tensors."""
    for each in marks:
        with suppress(Exception):
            if each is mark or each == mark:
                return True
    return False


def set_place_of_skip(item: Any, report: Any) -> None:
    """Where the first rank skipped; pytest would say where the test begins."""
    run = item.stash.get(_last_run, None)
    if run is None or not isinstance(report.longrepr, tuple):
        return
    place = run.records[0].skipped_at
    if report.skipped and len(run.skipped) == len(run.records) and place is not None:
        report.longrepr = (*place, report.longrepr[2])


def forget(item: Any) -> None:
    """After the test: pytest keeps its items to the end, and a failure holds frames, which
    hold tensors."""
    if _last_run in item.stash:
        del item.stash[_last_run]
        vars(item).pop("repr_failure", None)
    if _ready in item.stash:
        del item.stash[_ready]
