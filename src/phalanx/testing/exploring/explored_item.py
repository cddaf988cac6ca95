"""A test on ranks that is explored: from pytest's call of it to what pytest is to raise.

Used by `items.py` in place of the one run of a test. The explorer finds the failures; here they
are measured by what the test's marks say, and turned into what pytest shows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from phalanx.errors import HazardError, PhalanxWarning, UsageError
from phalanx.explore.exploration import Exploration, ExplorationFailure
from phalanx.explore.explore_options import ExploreOptions
from phalanx.explore.explorer import Explorer
from phalanx.explore.tokens import Token, read_token
from phalanx.model import Verdict
from phalanx.report.text import render_kind
from phalanx.testing.collection.expected_findings import missing_text, told_of
from phalanx.testing.collection.marker import Ranks
from phalanx.testing.exploring.explored_progress import ItemProgress
from phalanx.testing.exploring.explored_summary import plain_counts
from phalanx.testing.exploring.item_subject import ItemRuns, ItemSubject, RunEnded, without_plan
from phalanx.testing.pytest.item_recording import ItemRecording
from phalanx.testing.pytest.item_run import RanksRun
from phalanx.testing.pytest_compat import pytest_private as private


class ExploredItem:
    """What came of exploring one test."""

    def __init__(
        self, item: Any, way: Ranks, shared: Mapping[tuple[str, int], Any], replay: str
    ) -> None:
        """`replay` is the command that runs the item again."""
        assert way.explore is not None
        self.item = item
        self.way = without_plan(way)
        self.asked = _with_folder(way.explore, item)
        self.found: Exploration | None = None
        self.failures: list[ExplorationFailure] = []
        """Those that fail the test, the one that pytest is to show first at the front."""
        self._replay = replay
        self._runs = ItemRuns(item, self.way, shared)
        self._ended: RanksRun | None = None
        self._recording: ItemRecording | None = None

    # -- the runs ---------------------------------------------------------------------------

    def explore(self) -> None:
        """Make all runs. Blocks until the last one has ended."""
        __tracebackhide__ = True
        _refuse_other_size(self.item, self.way, self.asked)
        if self.asked.replay is not None:
            self._recording = ItemRecording(self.item, self.way, self.replay_line())
        subject = ItemSubject(self._runs, self.asked.plan, self._recording)
        progress = ItemProgress(self.item.config, self.asked)
        explorer = Explorer(subject, self.asked, progress, self.replay_line)
        try:
            with progress:
                self.found = explorer.run()
        except RunEnded as end:
            self._ended = end.run
            return
        self._tell_findings()
        self._judge()
        self.item.user_properties += plain_counts(self.found, self.failures, self.asked)
        self._check_expected()
        self._record()

    def replay_line(self, token: Token | None = None) -> str:
        text = self.asked.replay if token is None else str(token)
        return f"{self._replay} --ranks-replay {text}"

    @property
    def shown(self) -> RanksRun:
        """The run that pytest is to tell of: its output, its properties."""
        if self._ended is not None:
            return self._ended
        runs = self._runs
        kept = self.failures[0].kept if self.failures else None
        run = (kept.run if kept is not None else runs.expected) or runs.good or runs.first
        assert run is not None
        return run

    @property
    def run_decides(self) -> bool:
        """Whether the shown run says what becomes of the test that has no failures: it left no
        room for others, or has failed as `pytest.xfail()` in it says."""
        return self._ended is not None or self._runs.expected is not None

    # -- what they mean ---------------------------------------------------------------------

    def _tell_findings(self) -> None:
        assert self.found is not None
        expected = {kind for kind, _ in self.way.expected}
        for each in self._runs.warned.values():
            if each.kind not in expected:
                self.item.warn(PhalanxWarning(render_kind(each), each))
        for note in self.found.notes:
            self.item.warn(PhalanxWarning(note))

    def _judge(self) -> None:
        """Failures of kinds that the test expects are none. What no `xfail` mark covers is
        shown first, so that pytest does not take it for covered."""
        assert self.found is not None
        kinds = {kind for kind, _ in self.way.expected}
        self.failures = [each for each in self.found.failures if each.kind not in kinds]
        allows = private.xfail_allows(self.item)
        if allows is not None:
            self.failures.sort(key=lambda each: not _is_beyond(each, allows))

    def _check_expected(self) -> None:
        """Each kind that the test expects must come in some order."""
        kinds = {kind for kind, _ in self.way.expected}
        if not kinds or self.asked.replay is not None or self.found is None:
            return
        verdicts = [*map(_verdict_of, self.found.failures), *self._runs.warned.values()]
        came = [each for each in verdicts if each is not None]
        missing = kinds - {each.kind for each in came}
        text = (missing_text if missing else told_of)(self.way.expected, came)
        if missing and not self.failures:
            pytest.fail(f"{text} in {_orders(self.found)}", pytrace=False)
        self.item.add_report_section("call", "expected", text)

    def _record(self) -> None:
        """The run that is shown, into the folder of `--ranks-record`; if none was named, it is
        kept, as that of any test that fails."""
        run, recording = self.shown, self._recording
        if recording is not None:
            recording.end(run)
            if not self.failures:
                recording.passed()
        elif self.failures and (kept := self.failures[0].kept) is not None:
            recording = ItemRecording(self.item, self.way, self.failures[0].replay)
            if kept.writer is not None:
                recording.follow(kept.writer)
            recording.end(run)
        self._recording = recording

    def keep_recording(self) -> None:
        """pytest shows the failure."""
        if self._recording is not None and self.shown.error is not None:
            self._recording.keep(self.shown)


def _with_folder(asked: ExploreOptions, item: Any) -> ExploreOptions:
    """Failures are kept in pytest's root folder, wherever it was started."""
    if asked.store is None:
        return asked
    values = {name: getattr(asked, name) for name in asked.__dataclass_fields__}
    values["store"] = os.path.join(item.config.rootpath, asked.store)
    return ExploreOptions(**values)


def _refuse_other_size(item: Any, way: Ranks, asked: ExploreOptions) -> None:
    if asked.replay is None:
        return
    ranks = read_token(asked.replay).ranks
    if ranks != way.size:
        raise UsageError(
            f"--ranks-replay {asked.replay}: it is the token of a run on {ranks} ranks, and "
            f"{item.nodeid} runs on {way.size}; name the test that was reported with it"
        )


def _is_beyond(failure: ExplorationFailure, allows: Callable[[BaseException], bool]) -> bool:
    run = None if failure.kept is None else failure.kept.run
    if run is None or run.cause is None:
        return not allows(failure.error)
    return bool(run.is_beyond(allows))


def _verdict_of(failure: ExplorationFailure) -> Verdict | None:
    error = failure.error
    if isinstance(error, HazardError) and error.findings:
        return error.findings[0]
    verdict = getattr(error, "verdict", None)
    known = isinstance(verdict, Verdict)
    return verdict if known else None


def _orders(found: Exploration) -> str:
    if found.complete:
        return f"any of its {found.behaviours} behaviours"
    return f"{found.schedules} schedules"
