"""What came of exploring a program: figures, and failures with what repeats them."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.explore.trace import Trace


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
    replay: str = ""
    """What to type to repeat the run: a call, or a command."""
    fingerprint: str = ""
    """Of all that the run did: equal for equal runs, also in another process."""


@dataclass(frozen=True)
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
    fingerprint: str = ""
    """Of the one run, if one was repeated."""
    exact: bool | None = None
    """Whether the one run chose what its token says; None where none was repeated."""

    @property
    def passed(self) -> bool:
        return not self.failures

    def summary(self) -> str:
        """One sentence."""
        if self.complete:
            what = f"all {_count(self.behaviours, 'behaviour')} of this run explored"
        else:
            what = (
                f"{_count(self.schedules, 'schedule')} explored, "
                f"{_count(self.behaviours, 'behaviour')}"
            )
        if self.failures:
            ends = ", ".join(_end(each) for each in self.failures)
            return f"{what}: {ends}"
        return f"{what}: none fails"

    def render(self) -> str:
        """The summary, and the story of each failure with what repeats it."""
        parts = [self.summary()]
        for each in self.failures:
            parts.append(f"{each.story}\n\n  replay    {each.replay or each.token}")
        parts += [f"note: {each}" for each in self.notes]
        return "\n\n".join(parts)


def _end(failure: ExplorationFailure) -> str:
    return f"{failure.schedules} with {failure.kind}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
