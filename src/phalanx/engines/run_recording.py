"""The recording of a run, for all engines: as it goes on, or at the end of one that fails.

Every door that starts runs makes a `RunRecording`, gives its `follow` to the engine as
`Settings.on_journal`, and tells it how runs end. It writes to the file that the user named;
where none was named, the journal of a run that fails is kept (`journal/recording/kept_runs.py`)
and the report says how to look at it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from typing import Any

from phalanx.core.strand import here
from phalanx.errors import HazardError, PhalanxError, UsageError
from phalanx.journal.reader import Journal
from phalanx.journal.recording.kept_runs import ENDING, LAST, forget_link, keep_link, keep_run
from phalanx.journal.recording.recorder import Recorder
from phalanx.journal.writer import JournalWriter
from phalanx.model import Verdict
from phalanx.options import Options
from phalanx.report.text import headline

MOST_TEXT = 100_000
"""Characters of a report that are kept."""
MEBIBYTE = 1 << 20


class RunRecording:
    """Follows the runs of one world, or of one command."""

    def __init__(self, options: Options, *, program: str, command: str | None) -> None:
        self._options = options
        self.program = program
        """What ranks run: the name of a script, a function or a test."""
        self._facts = {
            "engine": options.engine,
            "command": command or "",
            "seed": options.seed,
            "clock of ranks": options.clock,
            "network": "" if options.network is None else str(options.network),
            "checks": options.checks,
            "profile": options.profile or "",
        }
        self.runs = 0
        """How many runs of a `World` have begun; 0 where nobody counts."""
        self._recorder: Recorder | None = None
        self._writer: JournalWriter | None = None
        self._end: dict[str, Any] = {"status": "finished"}
        self._verdicts: list[dict[str, Any]] = []

    def follow(self, journal: JournalWriter) -> None:
        """A run begins that writes into this journal."""
        self._writer = journal
        path = self._options.record
        if not isinstance(path, str):
            return
        if self._recorder is not None:
            self._recorder.follow(journal)
            return
        outer, here.strand = here.strand, None  # its thread belongs to no rank
        try:
            forget_link(path)
            limit = self._options.record_limit * MEBIBYTE
            self._recorder = Recorder(path, journal, self.facts, limit=limit)
        finally:
            here.strand = outer

    def found(self, findings: Sequence[Verdict]) -> None:
        """What checks found in a run that succeeded."""
        self._verdicts += self._of_this_run([plain_verdict(each) for each in findings])

    @property
    def path(self) -> str | None:
        """The file that is written, if one is."""
        return None if self._recorder is None else self._recorder.path

    def failed(
        self, error: BaseException, *, keep: bool = True, by_name: bool = False
    ) -> str | None:
        """A run ended with this error. What to give to `phalanx report` in order to see it;
        None if there is nothing. With `keep` a run that is not recorded is kept now. `by_name`
        is for one of several: LAST would mean another."""
        end = ending_of(error)
        verdicts = self._of_this_run(end["verdicts"])
        self._verdicts = verdicts + self._verdicts if self.runs else verdicts
        self._end = {**end, "run": self.runs} if self.runs else end
        if self._recorder is not None:
            if keep:
                keep_link(self._recorder.path)
            return self._recorder.path
        if self._options.record is False or self._writer is None or not keep:
            return None
        name = os.path.basename(self.program)
        journal = self._writer.reader()
        kept = keep_run(journal, self.facts, {**end, **self._clocks()}, name=name)
        if kept is None:
            return None
        return kept.name.removesuffix(ENDING) if by_name else LAST

    def __enter__(self) -> RunRecording:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Ends the recording if an error leaves the block: nobody else will."""
        if error is not None:
            with suppress(UsageError):
                self.failed(error, keep=False)
                self.close()

    def close(self) -> None:
        """No run follows. Says so if the recording could not be written to its end."""
        if self._recorder is None:
            return
        recorder, self._recorder = self._recorder, None
        recorder.close(self._ending())
        self._writer = None
        if recorder.failed is not None:
            raise UsageError(
                f"record={recorder.path!r}: the recording is not whole: {recorder.failed}"
            )

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the header of a recording says about the run."""
        return {"program": self.program, **self._facts}

    def _ending(self) -> Mapping[str, Any]:
        end = {**self._end, "verdicts": self._verdicts, **self._clocks()}
        if self.runs > 1:
            return {**end, "runs": self.runs}
        end.pop("run", None)
        return end

    def _clocks(self) -> dict[str, Any]:
        clocks = {} if self._writer is None else self._writer.clocks
        return {"clocks": clocks} if clocks else {}

    def _of_this_run(self, verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**each, "run": self.runs} for each in verdicts] if self.runs else verdicts


def ending_of(error: BaseException) -> dict[str, Any]:
    """How a run ended that raised this."""
    findings = error.findings if isinstance(error, HazardError) else ()
    verdict = getattr(error, "verdict", None)
    named = [verdict] if isinstance(verdict, Verdict) and verdict not in findings else []
    return {
        "status": "failed",
        "error": type(error).__name__,
        "text": str(error)[:MOST_TEXT],
        "verdicts": [plain_verdict(each) for each in [*named, *findings]],
    }


def timeline_of(journal: Journal, facts: Mapping[str, Any], end: Mapping[str, Any]) -> Any:
    """A run to look at. What draws it is imported when somebody wants it."""
    from phalanx.report.timeline.run_timeline import RunTimeline

    return RunTimeline(journal, facts, end)


def plain_verdict(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON has it; `type` is the name of its class, `headline` the first line of
    its report."""
    fields = asdict(verdict) if is_dataclass(verdict) else {}
    return {"type": type(verdict).__name__, "headline": headline(verdict), **fields}


def with_timeline(error: PhalanxError, name: str | None) -> None:
    """Add the line that says how to look at the run to the error's text."""
    if name is not None and error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{timeline_line(name)}", *error.args[1:])


def timeline_line(name: str) -> str:
    """As the last line of a report, below the one that repeats the run."""
    return f"  timeline  phalanx report {shlex.quote(name)}"


def is_in_a_test() -> bool:
    """Whether pytest runs a test: many fail there on purpose, and the plugin keeps those that
    should not have."""
    return "PYTEST_CURRENT_TEST" in os.environ
