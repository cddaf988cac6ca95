"""A test on ranks as what an exploration runs again and again.

Each run is a whole run of the test on threads: fixtures of the ranks are made and torn down in
it. What pytest itself has made for the test is there once, and shared by all runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phalanx.core.choices import Choices
from phalanx.explore.failures.kept_values import values_kept_by
from phalanx.explore.final_parameters import FinalParameters
from phalanx.explore.judging import LEFT_TO_EXPLORING
from phalanx.explore.one_run import RunOutcome
from phalanx.explore.subjects import free_compute
from phalanx.journal.writer import JournalWriter
from phalanx.model import Verdict
from phalanx.testing.collection.marker import Ranks
from phalanx.testing.exploring.folder_state import FolderState
from phalanx.testing.pytest.item_recording import ItemRecording
from phalanx.testing.pytest.item_run import RanksRun
from phalanx.testing.pytest.on_threads import hold_patches, run_on_threads
from phalanx.testing.pytest_compat import pytest_private as private


class RunEnded(BaseException):
    """A run that leaves no room for others: all ranks have skipped, or somebody ends pytest."""

    def __init__(self, run: RanksRun) -> None:
        super().__init__()
        self.run = run


class KeptRun:
    """A run of the test as pytest tells of it, and its journal for a recording."""

    def __init__(self) -> None:
        self.run: RanksRun | None = None
        self.writer: JournalWriter | None = None

    def follow(self, journal: JournalWriter) -> None:
        self.writer = journal


class ItemRuns:
    """What the runs of one exploration have in common."""

    def __init__(self, item: Any, way: Ranks, shared: Mapping[tuple[str, int], Any]) -> None:
        self.item = item
        self.way = way
        self.shared = shared
        self.folder = FolderState(item.funcargs.get("tmp_path"))
        self.first: RanksRun | None = None
        self.good: RanksRun | None = None
        """The first that has ended well."""
        self.expected: RanksRun | None = None
        """One that has failed as `pytest.xfail()` in it says."""
        self.warned: dict[tuple[str, str], Verdict] = {}
        """Findings that fail no test, by kind and place."""


class ItemSubject:
    """The test under one plan of faults. With a `recording` its runs are shown as that of a
    test that is not explored, and recorded."""

    takes_any_size = False
    """A test says on how many ranks it runs, and asserts what is right there."""

    def __init__(
        self, runs: ItemRuns, faults: tuple[Any, ...], recording: ItemRecording | None = None
    ) -> None:
        self.faults = faults
        self._runs = runs
        self._recording = recording

    @property
    def name(self) -> str:
        return str(self._runs.item.originalname)

    @property
    def ranks(self) -> int:
        return self._runs.way.size

    @property
    def key(self) -> str:
        return str(self._runs.item.nodeid)

    def run(self, choices: Choices) -> RunOutcome:
        """Raises `RunEnded` where pytest is to hear of this run and no other."""
        runs, kept = self._runs, KeptRun()
        runs.folder.restore()
        parameters = FinalParameters(self.ranks)
        with parameters:
            kept.run = run = run_on_threads(
                runs.item,
                runs.way,
                shared=runs.shared,
                extra={},
                replay="",
                recording=self._recording or kept,
                settings={
                    **free_compute(runs.way),
                    "choices": choices,
                    "faults": self.faults,
                    "strict": False,
                    "on_rank_end": parameters.take,
                },
                is_shown=self._recording is not None,
            )
        self._end_early(run)
        error = self._error_of(run)
        if error is None:
            runs.good = runs.good or run
        outcome = RunOutcome(
            error=error,
            output=tuple(record.out for record in run.records),
            parameters=parameters.digests(),
            fingerprint=run.fingerprint,
            journal=run.journal,
            kept=kept,
        )
        self._note_findings(run, outcome)
        return outcome

    def with_changes(
        self, *, ranks: int | None = None, faults: Any = None, quiet: bool = False
    ) -> ItemSubject:
        """Ranks are never changed: a token for others has been refused."""
        plan = self.faults if faults is None else tuple(faults)
        return ItemSubject(self._runs, plan, None if quiet else self._recording)

    def kept_values(self) -> Mapping[str, Any]:
        """What lives longer than a run, and what the test may change, by names."""
        shared = {name: value for (name, _), value in self._runs.shared.items()}
        kept = values_kept_by(self._runs.item.function, (), shared)
        return {name.replace("argument", "the fixture"): kept[name] for name in kept}

    def close(self) -> None:
        """End the threads that are kept for other tests as well."""
        hold_patches().close()

    def _end_early(self, run: RanksRun) -> None:
        is_first = self._runs.first is None
        self._runs.first = self._runs.first or run
        has_skipped = not run.error and len(run.skipped) == len(run.records)
        if run.interrupt is not None or (is_first and has_skipped):
            raise RunEnded(run)

    def _error_of(self, run: RanksRun) -> BaseException | None:
        if isinstance(run.raised, private.XFailed):
            self._runs.expected = run
            return None
        if run.error is not None:
            return run.error
        failed = [each for record in run.records for each in record.subtests if each.failure]
        return failed[0].failure.error if failed and failed[0].failure else None

    def _note_findings(self, run: RanksRun, outcome: RunOutcome) -> None:
        """Under `strict` they fail the test, else pytest warns of them at the end."""
        if self._runs.way.strict:
            outcome.findings = tuple(run.findings)
            return
        for each in run.findings:
            if each.kind not in LEFT_TO_EXPLORING:
                site = next((block.op.site for block in getattr(each, "blocks", ())), None)
                self._runs.warned.setdefault((each.kind, str(site)), each)


def without_plan(way: Ranks) -> Ranks:
    """The plan of faults is that of the exploration."""
    return replace(way, faults=()) if way.faults else way
