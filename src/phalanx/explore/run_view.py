"""Who sees the runs of a program that is explored, besides the explorer that judges them.

Made by the doors, given to subjects. The one run that a token repeats is there to be looked at:
its output is shown, and it is recorded if that was asked for. Of many runs nobody wants either.
"""

from __future__ import annotations

from phalanx.engines.run_recording import RunRecording
from phalanx.explore.exploration import Exploration
from phalanx.explore.explore_options import ExploreOptions
from phalanx.journal.writer import JournalWriter
from phalanx.model import Verdict
from phalanx.options import Options


class RunView:
    """In a `with` statement, around all runs; `end` says what came of them."""

    def __init__(
        self,
        *,
        shows_output: bool = False,
        recording: RunRecording | None = None,
    ) -> None:
        self.shows_output = shows_output
        """Whether what ranks print goes on to where it went before, and is not only kept."""
        self.has_formed_group = False
        """Whether a run has gone about it as a distributed program."""
        self._recording = recording

    @classmethod
    def of(
        cls, asked: ExploreOptions, options: Options, *, program: str, command: str
    ) -> RunView:
        """`program` and `command` are for the header of a recording."""
        recording = None
        if asked.record is not None:
            recording = RunRecording(options, program=program, command=command)
        return cls(shows_output=asked.replay is not None, recording=recording)

    def follow(self, journal: JournalWriter) -> None:
        """A run begins that writes into this journal."""
        if self._recording is not None:
            self._recording.follow(journal)

    def end(self, found: Exploration) -> None:
        """Write the end of the recording. Raises `UsageError` if it could not be written."""
        if self._recording is None:
            return
        errors = [each.error for each in found.failures]
        verdicts = [getattr(error, "verdict", None) for error in errors]
        self._recording.found([each for each in verdicts if isinstance(each, Verdict)])
        if errors:
            self._recording.failed(errors[0])
        self._recording.close()

    def __enter__(self) -> RunView:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._recording is not None:
            self._recording.__exit__(kind, error, trace)
