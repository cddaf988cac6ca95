"""The choices of one run: asks a strategy, and writes down what was chosen and what is known.

An object of this class is the `core.choices.Choices` of a run. It names threads by the order in
which their ranks start them, so that they have equal names in all runs that choose alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from phalanx.core.choices import Step
from phalanx.core.strand import Strand
from phalanx.explore.strategy import Strategy
from phalanx.explore.trace import (
    FAIR_AFTER,
    BlockedStep,
    Candidate,
    Choice,
    Thread,
    Trace,
    usual_of,
)

Clock = dict[Thread, int]
"""A vector clock. Never changed once it is made: many refer to it."""

_NOTHING: Clock = {}


class RunChoices:
    """Answers for one run, and its trace."""

    def __init__(self, strategy: Strategy) -> None:
        self.trace = Trace()
        self._strategy = strategy
        self._known: dict[Thread, Clock] = {}
        self._written: dict[Hashable, Clock] = {}
        self._read: dict[Hashable, Clock] = {}
        self._values: dict[Thread, int] = {}
        self._last: Thread | None = None
        self._turns: dict[Thread, int] = {}
        """Late in a long run: at which choice each thread went on last."""
        self._heard: Sequence[Clock] = ()
        """What was heard of last, and what it comes to."""
        self._news = _NOTHING

    def pick_strand(self, candidates: Sequence[Strand]) -> int:
        offered = tuple([self._candidate(strand, strand.step) for strand in candidates])
        made = len(self.trace.choices)
        if made < FAIR_AFTER:
            usual = usual_of(offered, self._last)
        else:
            turns = [self._turns.get(each.thread, 0) for each in offered]
            usual = turns.index(min(turns))
        chosen = self._strategy.pick(offered, usual, self.trace)
        step = candidates[chosen].step
        assert step is not None
        if made >= FAIR_AFTER:
            self._turns[offered[chosen].thread] = made
        self._add(offered[chosen], step.mark, chosen, usual, offered, ())
        return chosen

    def pick_value(self, strand: Strand, step: Step, values: Sequence[str]) -> int:
        candidate = self._candidate(strand, step)
        chosen = self._strategy.pick_value(candidate, values, self.trace)
        self._values[candidate.thread] = len(self.trace.choices)
        self._add(candidate, step.mark, chosen, 0, (), tuple(values))
        return chosen

    def wait(self, strand: Strand, step: Step) -> None:
        candidate = self._candidate(strand, step)
        known = self._known.get(candidate.thread, _NOTHING)
        self.trace.waits.append(BlockedStep(*candidate, len(self.trace.choices), known))

    def latest_value(self, strand: Strand) -> int:
        return self._values[_thread(strand)]

    def in_vain(self, value: int, instead: str) -> None:
        choices = self.trace.choices
        choices[value] = choices[value]._replace(values=(instead,))
        self._strategy.in_vain(value)

    def stamp(self, strand: Strand) -> Clock:
        return self._known.get(_thread(strand), _NOTHING)

    def learn(self, strand: Strand, stamps: Sequence[Clock]) -> None:
        if stamps is not self._heard:  # all who met hear the same
            self._heard, self._news = stamps, _NOTHING
            for stamp in stamps:
                self._news = _merged(self._news, stamp)
        thread = _thread(strand)
        self._known[thread] = _merged(self._known.get(thread, _NOTHING), self._news)

    def _add(
        self,
        candidate: Candidate,
        mark: Any,
        chosen: int,
        usual: int,
        candidates: tuple[Candidate, ...],
        values: tuple[str, ...],
    ) -> None:
        thread, _, places, writes = candidate
        before = known = self._known.get(thread, _NOTHING)
        for place in places:
            known = _merged(known, self._written.get(place, _NOTHING))
            if writes:
                known = _merged(known, self._read.get(place, _NOTHING))
        known = {**known, thread: known.get(thread, 0) + 1}
        self._known[thread] = known
        for place in places:
            if writes:
                self._written[place] = known
            else:
                self._read[place] = _merged(self._read.get(place, _NOTHING), known)
        self._last = thread
        choice = Choice(*candidate, mark, chosen, usual, candidates, values, known, before)
        self.trace.choices.append(choice)
        self._strategy.made(choice)

    def _candidate(self, strand: Strand, step: Step | None) -> Candidate:
        """Made once for each step: it may be offered many times. Threads of one rank share
        memory, which nobody sees them read and write: so all their steps conflict."""
        assert step is not None
        if step.offer is None:
            places, writes = step.places, step.writes
            if strand.number or _has_threads(strand):
                places, writes = (*places, ("threads", strand.rank)), True
            step.offer = Candidate(_thread(strand), step.kind, places, writes)
        found: Candidate = step.offer
        return found


def _thread(strand: Strand) -> Thread:
    return strand.rank, strand.number


def _has_threads(strand: Strand) -> bool:
    """Whether its rank has started threads that have not ended, or has given jobs to a pool."""
    local = getattr(strand, "local", None)
    return bool(getattr(local, "helpers", ()) or getattr(local, "uses_pools", False))


def _merged(known: Clock, more: Clock) -> Clock:
    """The later of both, of each thread; `known` itself where `more` has no news."""
    if more is known or not more:
        return known
    if not known:
        return more
    result = known
    for thread, count in more.items():
        if known.get(thread, 0) < count:
            if result is known:
                result = dict(known)
            result[thread] = count
    return result
