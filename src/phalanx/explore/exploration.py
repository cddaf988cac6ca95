"""What came of exploring a program: figures, and failures with what repeats them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.explore.trace import Trace
from phalanx.report.layout import labelled


@dataclass(frozen=True)
class ExplorationFailure:
    """One way in which the program fails, in the smallest run that shows it."""

    kind: str
    """As `phalanx.kinds` names it, or "rank-failed"."""
    title: str
    """One sentence: the first line of the report."""
    token: str
    """Repeats the run: `replay=token`."""
    story: str
    """The choices that matter, in order, then the report of the failure."""
    error: BaseException = field(compare=False)
    """What `phalanx.run` raises there."""
    trace: Trace = field(compare=False, repr=False)
    schedules: int = 1
    """In how many of the schedules that were tried it came."""
    first: int = 1
    """The first of these schedules, counted from 1."""
    behaviours: int = 1
    """How many different behaviours these were."""
    ranks: int = 0
    """On how many ranks it is told; 0: as many as were explored."""
    replay: str = ""
    """What to type to repeat the run: a call, or a command."""
    fingerprint: str = ""
    """Of all that the run did: equal for equal runs, also in another process."""
    order: tuple[str, ...] = ()
    """The part of the story that says in which order it comes, as lines."""
    kept: Any = field(default=None, compare=False, repr=False)
    """What the door that made the run has kept of it."""


@dataclass(frozen=True, repr=False)
class Exploration:
    """What came of exploring a program."""

    ranks: int
    schedules: int
    """How many runs were made in search of failures."""
    behaviours: int
    """How many of them differ in what a rank can tell."""
    results: int
    """How many different results there were."""
    complete: bool
    """Whether all behaviours of this program, on these ranks and this input, were explored."""
    failures: tuple[ExplorationFailure, ...]
    seconds: float = field(compare=False)
    notes: tuple[str, ...] = ()
    """What is to be known besides: runs that should have been equal, a program that has changed
    since its token was made, failures that could not be kept."""
    program: str = ""
    """What was run: a function, a script, a test."""
    has_faults: bool = False
    """Whether faults happened in its runs."""
    fingerprint: str = ""
    """Of the one run, if one was repeated."""
    replayed: str = ""
    """The token of the one run."""
    exact: bool | None = None
    """Whether the one run chose what its token says; None where none was repeated."""

    @property
    def passed(self) -> bool:
        return not self.failures

    def __repr__(self) -> str:
        return f"<Exploration of {self.program or 'a program'}: {self.summary()}>"

    def summary(self) -> str:
        """One sentence, which says no more than what was run."""
        if self.replayed:
            exactly = "exactly" if self.exact else "but not exactly"
            return f"the run of {self.replayed} again, {exactly}: {self._one_end()}"
        failed = [
            each.behaviours if self.complete else each.schedules for each in self.failures
        ]
        ends = _ends(self.failures, failed) or "none fails"
        behaviours = _count(self.behaviours, "behaviour")
        if not self.complete:
            return f"{_count(self.schedules, 'schedule')} explored, {behaviours}: {ends}"
        every = f"all {behaviours}"
        if self.behaviours == 1:
            every, ends = "the only behaviour", self._one_end()
        faults = " and these faults" if self.has_faults else ""
        return (
            f"{every} of {self.program} on {_count(self.ranks, 'rank')} with this "
            f"input{faults} explored: {ends}"
        )

    def _one_end(self) -> str:
        ends = ", ".join(_end(each.kind, 1).removeprefix("1 ") for each in self.failures)
        return f"it {ends or 'does not fail'}"

    def render(self) -> str:
        """The summary, and the story of each failure with what repeats it."""
        parts = [self.summary()]
        for each in self.failures:
            lines = labelled("replay", each.replay or each.token, whole=True)
            if each.ranks and each.ranks != self.ranks:
                lines = [*labelled("ranks", f"{each.ranks} are enough for it"), *lines]
            parts.append("\n".join([each.story, "", *lines]))
        parts += [f"note: {each}" for each in self.notes]
        return "\n\n".join(parts)


_ENDS: Mapping[str, str] = {
    "rank-failed": "in an error",
    "deadlock": "in a deadlock",
    "mismatch": "in a mismatch",
    "stall": "in a standstill",
    "invariant": "where an invariant does not hold",
    "different-results": "with another result",
}


def _ends(failures: Sequence[ExplorationFailure], times: Sequence[int]) -> str:
    """Failures of one kind are one part: "25 end in an error (4 different ones)"."""
    together: dict[str, list[int]] = {}
    for failure, each in zip(failures, times, strict=True):
        together.setdefault(failure.kind, []).append(each)
    return ", ".join(
        _end(kind, sum(each)) + (f" ({len(each)} different ones)" if len(each) > 1 else "")
        for kind, each in together.items()
    )


def _end(kind: str, times: int) -> str:
    end = _ENDS.get(kind, f"with {kind}")
    return f"{times:,} {'ends' if times == 1 else 'end'} {end}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
