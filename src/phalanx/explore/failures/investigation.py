"""What is done with one failure before it is told: it is repeated, and shrunk.

A failure that does not come again in the same order is told as uncontrolled chance. One that
does is made small: fewer faults, fewer choices, fewer ranks. Only a run that was repeated and
failed alike is told.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.errors import UsageError
from phalanx.explore.failures.chance_watch import ChanceWatch, hint_of
from phalanx.explore.failures.deviations import FollowedDeviations, deviations_in
from phalanx.explore.failures.partings import RunParting, parting_of
from phalanx.explore.failures.shrinking import Budget, Plan, Shrinker
from phalanx.explore.failures.story import MOST_SENTENCES
from phalanx.explore.judging import Symptom, failures_of
from phalanx.explore.one_run import Execution, Subject, repeat, run_once
from phalanx.explore.strategies.random_walk import RandomWalk
from phalanx.explore.trace import Trace
from phalanx.model import Verdict

TRIES = 24
"""Schedules that are tried with fewer ranks, to see whether they fail alike."""
MOST_RANKS_TRIED = 8

Cause = BaseException | Verdict


@dataclass
class Suspect:
    """A run that failed, and what it failed by."""

    symptom: Symptom
    subject: Subject
    """With the ranks and the plan of faults of that run."""
    execution: Execution
    cause: Cause
    times: int = 1
    first: int = 1
    """The schedule in which it came first."""
    behaviours: set[Hashable] = field(default_factory=set)
    """Of the runs that failed so."""
    without: Sequence[Trace] = ()
    """For each deviation of the run, what comes without it; empty where nobody looked."""
    parting: RunParting | None = None
    """Where the run that should have been equal parted from it, if it did not fail alike."""
    hint: str | None = None

    def fails_alike(self, execution: Execution) -> Cause | None:
        """What that run fails by, if it is the same."""
        for symptom, cause in failures_of(execution):
            if symptom == self.symptom:
                return cause
        return None

    def become(self, execution: Execution, subject: Subject) -> None:
        cause = self.fails_alike(execution)
        assert cause is not None
        self.execution, self.cause, self.subject = execution, cause, subject


class Investigation:
    """Of one suspect, which it changes. `on_run` is told after each run that is made."""

    def __init__(
        self,
        suspect: Suspect,
        *,
        budget: Budget | None = None,
        on_run: Callable[[], object] = lambda: None,
    ) -> None:
        self.suspect = suspect
        self.interrupted = False
        self._budget = budget or Budget()
        self._on_run = on_run

    def investigate(self) -> None:
        """Repeat, shrink, repeat. Ctrl-C ends it; what is known then stands."""
        try:
            if not self._repeats():
                return
            self._drop_faults()
            self._shrink()
            self._use_fewer_ranks()
            if self._repeats():
                suspect = self.suspect
                suspect.without = runs_without(suspect.subject, suspect.execution, self._run)
        except KeyboardInterrupt:
            self.interrupted = True

    # -- the same run again -----------------------------------------------------------------

    def _repeats(self) -> bool:
        suspect = self.suspect
        again = self._repeat(suspect.execution)
        if suspect.fails_alike(again) is not None:
            return True
        parting = parting_of(suspect.execution.trace, again.trace)
        suspect.parting = parting or RunParting(
            "the failure", "a run without it, by the same choices", self._ranks()
        )
        suspect.hint = find_hint(suspect.subject, suspect.execution)
        return False

    def _ranks(self) -> tuple[int, ...]:
        return tuple(getattr(getattr(self.suspect.cause, "verdict", None), "ranks", ()))

    def _repeat(self, execution: Execution) -> Execution:
        again, _ = repeat(self.suspect.subject, execution.trace.deviations())
        self._on_run()
        return again

    # -- smaller ----------------------------------------------------------------------------

    def _drop_faults(self) -> None:
        """Each fault of the plan is left out once; what still fails does without it."""
        suspect = self.suspect
        plan = deviations_in(suspect.execution.trace)
        for fault in list(suspect.subject.faults):
            fewer = [each for each in suspect.subject.faults if each is not fault]
            self._try(suspect.subject.with_changes(faults=fewer), plan)
        for place, fault in enumerate(suspect.subject.faults):
            for simpler in simpler_forms(fault):
                faults = [*suspect.subject.faults]
                faults[place] = simpler
                if self._try(suspect.subject.with_changes(faults=faults), plan):
                    break

    def _try(self, subject: Subject, plan: Plan) -> bool:
        if not self._budget.take():
            return False
        execution = self._run(subject, plan)
        if self.suspect.fails_alike(execution) is None:
            return False
        self.suspect.become(execution, subject)
        return True

    def _shrink(self) -> None:
        suspect = self.suspect
        best = self._smallest(suspect.subject, suspect.execution)
        if best is not suspect.execution:
            suspect.become(best, suspect.subject)

    def _smallest(self, subject: Subject, execution: Execution) -> Execution:
        shrinker = Shrinker(
            execution,
            lambda plan: self._run(subject, plan),
            lambda made: self.suspect.fails_alike(made) is not None,
            self._budget,
        )
        best = shrinker.shrink()
        self.interrupted |= shrinker.interrupted
        return best

    def _use_fewer_ranks(self) -> None:
        """The fewest ranks on which it fails alike, by no more choices. A program that is made
        for a certain number of ranks fails on fewer for other reasons: it must pass there in
        the default order, if it does here."""
        suspect = self.suspect
        if self.interrupted or not getattr(suspect.subject, "takes_any_size", False):
            return
        plan = deviations_in(suspect.execution.trace)
        for ranks in range(2, min(suspect.subject.ranks, MOST_RANKS_TRIED + 2)):
            if self._budget.runs < TRIES:
                return
            try:
                fewer = suspect.subject.with_changes(ranks=ranks)
                found = self._fails_on(fewer, plan)
            except UsageError:
                continue
            if found is not None and len(deviations_in(found.trace)) <= len(plan):
                suspect.become(found, fewer)
                return

    def _fails_on(self, subject: Subject, plan: Plan) -> Execution | None:
        """The smallest run of this subject that fails alike, if there is one."""
        suspect = self.suspect
        default = self._run(subject, ())
        failed = [symptom for symptom, _ in failures_of(default)]
        if not plan:
            return default if suspect.symptom in failed else None
        if failed:
            return None
        walk = RandomWalk(0)
        for number in range(TRIES):
            if not self._budget.take():
                return None
            if number == 0:
                execution = self._run(subject, plan)
            else:
                walk.begin()
                execution = run_once(subject, walk)
                self._on_run()
            if suspect.fails_alike(execution) is not None:
                return self._smallest(subject, execution)
        return None

    def _run(self, subject: Subject, plan: Plan) -> Execution:
        strategy = FollowedDeviations(plan)
        strategy.begin()
        execution = run_once(subject, strategy)
        self._on_run()
        return execution


def runs_without(
    subject: Subject, execution: Execution, run: Callable[[Subject, Plan], Execution]
) -> Sequence[Trace]:
    """For the story: each choice of the run left out once."""
    plan = deviations_in(execution.trace)
    if len(plan) > MOST_SENTENCES:
        return ()
    return [
        run(subject, (*plan[:place], *plan[place + 1 :])).trace for place in range(len(plan))
    ]


def find_hint(subject: Subject, execution: Execution) -> str | None:
    """Make the run once more and see which sources of chance the program asks."""
    subject.close()  # threads that are kept began before anybody watched
    try:
        deviations = execution.trace.deviations()
        kept = getattr(subject, "kept_values", dict)
        return hint_of(ChanceWatch(), lambda: repeat(subject, deviations), kept)
    finally:
        subject.close()


def simpler_forms(fault: Any) -> Iterator[Any]:
    """What a fault may be replaced by, simplest first: one bit, one second."""
    for name, simple in (("bits", 1), ("seconds", 1.0)):
        given = getattr(fault, name, None)
        if isinstance(given, (int, float)) and given > simple:
            yield replace(fault, **{name: simple})
