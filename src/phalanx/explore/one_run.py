"""One run of a program under given choices: what it was, and what came of it.

A `Subject` knows how to run the program once. `run_once` lets a strategy choose and returns the
trace of the run with its outcome. Whoever explores, shrinks or replays comes through here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from phalanx.core.choices import Choices
from phalanx.explore.run_choices import RunChoices
from phalanx.explore.strategies.replay import FollowedChoices
from phalanx.explore.strategy import Strategy
from phalanx.explore.trace import Trace
from phalanx.journal.events import RankEnded
from phalanx.journal.reader import Journal
from phalanx.model import Verdict


@dataclass
class RunOutcome:
    """What came of one run."""

    error: BaseException | None = None
    """What `phalanx.run` would raise; None: all ranks ended well."""
    findings: Sequence[Verdict] = ()
    """What checks found that is no error."""
    values: Sequence[Any] = ()
    """What each rank returned; empty after an error."""
    output: Sequence[str] = ()
    """What each rank printed to standard output."""
    parameters: Sequence[Any] = ()
    """A hash of the parameters that each rank ended with; None for a rank without."""
    fingerprint: int = 0
    """Of the order in which ranks had the baton."""
    journal: Journal | None = field(default=None, repr=False)
    kept: Any = field(default=None, repr=False)
    """What the door that makes the runs wants to have again of one that is told."""

    @property
    def killed(self) -> frozenset[int]:
        """Ranks that a plan of faults has killed for good: they have no result."""
        ends = () if self.journal is None else self.journal.filter(kind="rank-ended")
        return frozenset(
            each.rank for each in ends if isinstance(each, RankEnded) and each.how == "killed"
        )


@dataclass(frozen=True)
class Execution:
    """A run that has ended: what was chosen, and what came of it."""

    trace: Trace
    outcome: RunOutcome

    @property
    def fingerprint(self) -> str:
        """Of all that was chosen, at which lines, and of the order in which threads had the
        baton: equal for equal runs."""
        digest = hashlib.blake2b(str(self.outcome.fingerprint).encode(), digest_size=8)
        for choice in self.trace.choices:
            place = (choice.mark[0].co_filename, choice.mark[1]) if choice.mark else None
            said = (choice.thread, choice.kind, choice.places, choice.chosen, place)
            digest.update(repr(said).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()


class Subject(Protocol):
    """A program that can be run again and again."""

    @property
    def name(self) -> str:
        """As reports call it."""
        ...

    @property
    def ranks(self) -> int: ...

    @property
    def faults(self) -> tuple[Any, ...]:
        """The plan of faults that happen in each run."""
        ...

    def run(self, choices: Choices) -> RunOutcome:
        """Run it once. Blocks until all ranks have ended. Errors of the program are in the
        outcome; raises what interrupts (Ctrl-C) and `UsageError`."""
        ...

    @property
    def key(self) -> str:
        """What tells it from all other programs, also another time."""
        ...

    @property
    def takes_any_size(self) -> bool:
        """Whether it may be tried on fewer ranks."""
        ...

    def with_changes(
        self, *, ranks: int | None = None, faults: Any = None, quiet: bool = False
    ) -> Subject:
        """The same program on other ranks, or with another plan, or `quiet`, so that nobody
        sees it run. They share what is kept between runs, and whoever made the first one closes
        it."""
        ...

    def close(self) -> None:
        """End what is kept between runs. A run that follows begins anew."""
        ...


def repeat(subject: Subject, deviations: Mapping[int, int]) -> tuple[Execution, bool]:
    """Run the subject in the default order but for these deviations, by the indices of choices.
    Also returns whether all of them could be followed."""
    strategy = FollowedChoices(deviations)
    strategy.begin()
    execution = run_once(subject, strategy)
    return execution, not strategy.missed


def run_once(subject: Subject, strategy: Strategy) -> Execution:
    """Run the subject once, as the strategy, which has begun its run, chooses."""
    choices = RunChoices(strategy)
    outcome = subject.run(choices)
    strategy.end(choices.trace)
    return Execution(choices.trace, outcome)
