"""Make a failing run small: the fewest deviations from the default order that fail alike.

Delta debugging over deviations: take out large parts of them, then smaller ones, then each,
then pairs; at last look for a shorter way from the default order. A result is always a run that
was made and failed. Bounded in runs and in seconds; Ctrl-C ends it, and the smallest so far
stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

from phalanx.explore.failures.deviations import Deviation, deviations_in
from phalanx.explore.one_run import Execution
from phalanx.explore.trace import Thread, Trace

MOST_RUNS = 600
"""For one failure."""
MOST_SECONDS = 10.0
MOST_FOR_PAIRS = 14
"""With more deviations than these no pairs of them are tried."""

Plan = tuple[Deviation, ...]


@dataclass
class Budget:
    """How much may still be tried."""

    runs: int = MOST_RUNS
    seconds: float = MOST_SECONDS
    _began: float = field(default_factory=time.monotonic)

    def take(self) -> bool:
        """Whether one more run may be made; then it counts."""
        if self.runs <= 0 or time.monotonic() - self._began >= self.seconds:
            return False
        self.runs -= 1
        return True


class Shrinker:
    """Shrinks one failing run. `run` makes a run with these deviations; `fails` says whether it
    fails as the first one did."""

    def __init__(
        self,
        failing: Execution,
        run: Callable[[Plan], Execution],
        fails: Callable[[Execution], bool],
        budget: Budget,
    ) -> None:
        self.best = failing
        """The smallest run so far that fails so."""
        self.plan = deviations_in(failing.trace)
        self.interrupted = False
        self._run, self._fails, self._budget = run, fails, budget
        self._tried: set[Plan] = {self.plan}

    def shrink(self) -> Execution:
        try:
            if not self._try(()):
                self._take_out_parts()
                self._take_out_pairs()
                while self._let_another_go():
                    self._take_out_pairs()
                self._look_nearby()
                self._choose_smaller()
        except KeyboardInterrupt:
            self.interrupted = True
        return self.best

    def _try(self, plan: Plan) -> bool:
        """Whether it fails so and is smaller: then it is the best."""
        if plan in self._tried or not self._budget.take():
            return False
        self._tried.add(plan)
        execution = self._run(plan)
        if not self._fails(execution):
            return False
        made = deviations_in(execution.trace)
        if _size(made) >= _size(self.plan):
            return False
        self.best, self.plan = execution, made
        self._tried.add(made)
        return True

    def _take_out_parts(self) -> None:
        """Halves first, then quarters, until each deviation was left out once in vain."""
        part = max(1, len(self.plan) // 2)
        while True:
            while self._take_out_one_part(part):
                pass
            if part == 1:
                return
            part = max(1, part // 2)

    def _take_out_one_part(self, part: int) -> bool:
        """The last ones first: what comes after the failure was decided matters least."""
        shrunk = False
        end = len(self.plan)
        while end > 0:
            start = max(0, end - part)
            if self._try(self.plan[:start] + self.plan[end:]):
                shrunk = True
            end = min(start, len(self.plan))
        return shrunk

    def _take_out_pairs(self) -> None:
        while len(self.plan) <= MOST_FOR_PAIRS:
            pairs = combinations(range(len(self.plan)), 2)
            if not any(self._try(_without(self.plan, pair)) for pair in pairs):
                return
            self._take_out_parts()

    def _let_another_go(self) -> bool:
        """Whether one deviation can be left out if at another one somebody else goes first."""
        if len(self.plan) > MOST_FOR_PAIRS:
            return False
        threads = sorted({each.thread for each in self.plan} | set(_chosen_in(self.plan)))
        for place, each in enumerate(self.plan):
            if not isinstance(each.chosen, tuple):
                continue
            others = [t for t in threads if t not in (each.chosen, each.thread)]
            for left_out, thread in product(range(len(self.plan)), others):
                plan = [*self.plan]
                plan[place] = each._replace(chosen=thread)
                if left_out != place and self._try(_without(tuple(plan), (left_out,))):
                    return True
        return False

    def _look_nearby(self) -> None:
        """One other deviation may do what several do together: each that is possible is tried
        alone, then together with one that is known to matter."""
        if len(self.plan) >= 2 and not self._try_each_with(()) and len(self.plan) > 2:
            for kept in self.plan[:MOST_FOR_PAIRS]:
                if self._try_each_with((kept,)):
                    return

    def _try_each_with(self, kept: Plan) -> bool:
        if not self._budget.take():
            return False
        trace = self._run(kept).trace
        return any(self._try((*kept, each)) for each in _possible(trace))

    def _choose_smaller(self) -> None:
        """Lower ranks go first where that does as well."""
        place = 0
        while place < len(self.plan):
            each = self.plan[place]
            if isinstance(each.chosen, tuple):
                for rank in range(each.chosen[0]):
                    other = each._replace(chosen=(rank, 0))
                    plan = (*self.plan[:place], other, *self.plan[place + 1 :])
                    if (rank, 0) != each.thread and self._try(plan):
                        break
            place += 1


def _size(plan: Plan) -> tuple[int, int]:
    """Fewer deviations are smaller; among equally many, those in which lower ranks go first."""
    return len(plan), sum(rank for rank, _ in _chosen_in(plan))


def _chosen_in(plan: Plan) -> Iterator[Thread]:
    return (each.chosen for each in plan if isinstance(each.chosen, tuple))


def _without(plan: Plan, places: tuple[int, ...]) -> Plan:
    return tuple(each for place, each in enumerate(plan) if place not in places)


def _possible(trace: Trace) -> Iterator[Deviation]:
    """All deviations that a run of this trace could have made, one at a time."""
    made: dict[tuple[int, int], int] = {}
    for choice in trace.choices:
        if choice.values:
            number = made.get(choice.thread, 0)
            for place, value in enumerate(choice.values):
                if place != choice.chosen:
                    yield Deviation(choice.thread, number, value)
        else:
            usual = choice.candidates[choice.usual].thread
            for candidate in choice.candidates:
                if candidate.thread != usual:
                    yield Deviation(usual, made.get(usual, 0), candidate.thread)
        made[choice.thread] = made.get(choice.thread, 0) + 1
