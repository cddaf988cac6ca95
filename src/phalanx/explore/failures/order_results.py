"""The results that the runs of an exploration ended with, and a finding if they differ.

A result is compared with that of the default order, so that the two orders differ in as little
as possible. Before results are told to depend on the order, both orders are run again: what
differs from itself depends on chance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from phalanx.explore.explore_options import COMPARED
from phalanx.explore.failures.deviations import FollowedDeviations
from phalanx.explore.failures.investigation import runs_without
from phalanx.explore.failures.partings import RunParting
from phalanx.explore.failures.result_differences import (
    differences,
    results_found,
    side_by_side,
)
from phalanx.explore.failures.shrinking import Budget, Plan, Shrinker
from phalanx.explore.judging import failures_of, result_of
from phalanx.explore.one_run import Execution, Subject, repeat, run_once
from phalanx.explore.trace import Trace
from phalanx.model import Finding, rank_list

HINT = (
    "if results may differ by order, say which need not be equal: "
    "compare=('values',), or compare='none'"
)


Result = tuple[bytes, frozenset[int]]
"""A digest, and the ranks that were killed, which are not in it."""

_NOBODY: frozenset[int] = frozenset()
MOST_KEPT = 16
"""Runs with different ranks killed, of which each may be the one to tell."""


@dataclass(frozen=True)
class DifferentResults:
    """Two runs that end well, with different results."""

    finding: Finding
    one: Execution
    other: Execution
    subject: Subject
    """Of the other run."""
    without: Sequence[Trace] = ()
    times: int = 1
    """How many of the runs that ended well had another result than the one."""
    first: int = 1
    """The schedule of the first of them."""
    behaviours: int = 1
    """How many behaviours they were."""

    def rows(self) -> list[str]:
        return side_by_side(self.one, self.other)


class OrderResults:
    """Notes the result of each run that ended well."""

    def __init__(self, compare: Collection[str]) -> None:
        self.compare = frozenset(compare)
        self.unsteady: tuple[Execution, Execution, Subject] | None = None
        """Two runs of one order with different results."""
        self._ended: dict[Result, list[Hashable]] = {}
        """By result: the behaviour of each run that ended with it."""
        self._first: dict[Result, int] = {}
        """By result: the first schedule that ended with it."""
        self._kept: list[tuple[Result, Execution, Subject]] = []

    def leave_out(self, names: Collection[str]) -> None:
        """These parts of results depend on chance: do not compare them."""
        self.compare -= frozenset(names)
        self._ended.clear()
        self._first.clear()
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._ended)

    def note(
        self, execution: Execution, subject: Subject, behaviour: Hashable, schedule: int
    ) -> None:
        killed = execution.outcome.killed if subject.faults else _NOBODY
        result = result_of(execution.outcome, self.compare, killed), killed
        if result not in self._ended and len(self._kept) < (MOST_KEPT if killed else 2):
            self._kept.append((result, execution, subject))
        self._ended.setdefault(result, []).append(behaviour)
        self._first.setdefault(result, schedule)

    def find(
        self,
        base: Subject,
        budget: Budget,
        on_run: Callable[[], object],
        *,
        by: str = "order",
        fewest: int = 2,
    ) -> DifferentResults | None:
        """The finding, if the results differ. `base` is what they are compared with: the
        program without faults. Where orders decide, so many different results must have come
        for the default order to be worth a run."""
        if not self.compare or not self._kept:
            return None
        if by == "order" and len(self._kept) < fewest:
            return None
        one = self._default(base, on_run)

        def is_another(result: Result) -> bool:
            return result[0] != result_of(one.outcome, self.compare, result[1])

        chosen = [each for each in self._kept if is_another(each[0])]
        if not chosen:
            return None
        _, other, subject = chosen[0]
        if not self._is_steady(base, one, on_run):
            return None
        if not self._is_steady(subject, other, on_run):
            return None

        def differs(made: Execution) -> bool:
            if made.outcome.error is not None or any(failures_of(made)):
                return False
            killed = made.outcome.killed
            return is_another((result_of(made.outcome, self.compare, killed), killed))

        other = Shrinker(
            other, lambda plan: _run(subject, plan, on_run), differs, budget
        ).shrink()
        hint = HINT if by == "order" else None
        finding = results_found(one, other, self.compare, by=by, hint=hint)
        without = runs_without(subject, other, lambda each, plan: _run(each, plan, on_run))
        others = [
            each for result, ends in self._ended.items() if is_another(result) for each in ends
        ]
        return DifferentResults(
            finding,
            one,
            other,
            subject,
            without,
            times=len(others),
            behaviours=len(set(others)),
            first=min(at for result, at in self._first.items() if is_another(result)),
        )

    def _default(self, subject: Subject, on_run: Callable[[], object]) -> Execution:
        """The default order, or where that fails the first that did not."""
        one = _run(subject, (), on_run)
        return self._kept[0][1] if any(failures_of(one)) else one

    def _is_steady(
        self, subject: Subject, execution: Execution, on_run: Callable[[], object]
    ) -> bool:
        """Whether the same order gives the same result again."""
        again, _ = repeat(subject, execution.trace.deviations())
        on_run()
        if not unsteady_parts(execution, again, self.compare):
            return True
        self.unsteady = (execution, again, subject)
        return False


def unsteady_parts(
    one: Execution, again: Execution, compare: Collection[str]
) -> tuple[str, ...]:
    """The parts of results in which two runs differ that should be equal."""
    if one.outcome.error is not None or again.outcome.error is not None:
        return ()
    return tuple(
        name
        for name in COMPARED
        if name in compare and differences(one.outcome, again.outcome, (name,))
    )


def result_parting(
    one: Execution, again: Execution, compare: Collection[str]
) -> RunParting | None:
    """How the results of two runs differ that should be equal; None if they do not."""
    if not unsteady_parts(one, again, compare):
        return None
    first = differences(one.outcome, again.outcome, compare)[0]
    who = rank_list(first.ranks)
    return RunParting(
        f"{who} {first.what} {first.one}", f"{who} {first.what} {first.other}", first.ranks
    )


def _run(subject: Subject, plan: Plan, on_run: Callable[[], object]) -> Execution:
    strategy = FollowedDeviations(plan)
    strategy.begin()
    execution = run_once(subject, strategy)
    on_run()
    return execution
