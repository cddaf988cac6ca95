"""The choices of one run: asks a strategy, and writes down what was chosen and what is known.

An object of this class is the `core.choices.Choices` of a run. It numbers threads in the order
in which they come, so that they have equal names in all runs that choose alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from phalanx.core.choices import Step
from phalanx.core.strand import Strand
from phalanx.explore.strategy import Strategy
from phalanx.explore.trace import Candidate, Choice, Thread, Trace, usual_of


class RunChoices:
    """Answers for one run, and its trace."""

    def __init__(self, strategy: Strategy) -> None:
        self.trace = Trace()
        self._strategy = strategy
        self._threads: dict[Strand, Thread] = {}
        self._of_rank: dict[int, int] = {}
        self._known: dict[Thread, dict[Thread, int]] = {}
        self._written: dict[Any, dict[Thread, int]] = {}
        self._read: dict[Any, dict[Thread, int]] = {}
        self._last: Thread | None = None

    def pick_strand(self, candidates: Sequence[Strand]) -> int:
        offered = tuple(self._candidate(strand, strand.step) for strand in candidates)
        usual = usual_of(offered, self._last)
        chosen = self._strategy.pick(offered, usual, self.trace)
        step = candidates[chosen].step
        assert step is not None
        self._add(offered[chosen], step.mark, chosen, usual, offered, ())
        return chosen

    def pick_value(self, strand: Strand, step: Step, values: Sequence[str]) -> int:
        candidate = self._candidate(strand, step)
        chosen = self._strategy.pick_value(candidate, values, self.trace)
        self._add(candidate, step.mark, chosen, 0, (), tuple(values))
        return chosen

    def stamp(self, strand: Strand) -> dict[Thread, int]:
        return dict(self._known.get(self._thread(strand), {}))

    def learn(self, strand: Strand, stamps: Iterable[dict[Thread, int]]) -> None:
        known = self._known.setdefault(self._thread(strand), {})
        for stamp in stamps:
            _merge(known, stamp)

    def _add(
        self,
        candidate: Candidate,
        mark: Any,
        chosen: int,
        usual: int,
        candidates: tuple[Candidate, ...],
        values: tuple[str, ...],
    ) -> None:
        thread = candidate.thread
        known = self._known.setdefault(thread, {})
        for place in candidate.places:
            _merge(known, self._written.get(place, {}))
            if candidate.writes:
                _merge(known, self._read.get(place, {}))
        known[thread] = known.get(thread, 0) + 1
        for place in candidate.places:
            kept = self._written if candidate.writes else self._read
            _merge(kept.setdefault(place, {}), known)
        self._last = thread
        choice = Choice(*candidate, mark, chosen, usual, candidates, values, dict(known))
        self.trace.choices.append(choice)
        self._strategy.made(choice)

    def _candidate(self, strand: Strand, step: Step | None) -> Candidate:
        assert step is not None
        return Candidate(self._thread(strand), step.kind, step.places, step.writes)

    def _thread(self, strand: Strand) -> Thread:
        found = self._threads.get(strand)
        if found is None:
            if strand.helper:
                number = self._of_rank[strand.rank] = self._of_rank.get(strand.rank, 0) + 1
            else:
                number = 0
            found = self._threads[strand] = (strand.rank, number)
        return found


def _merge(known: dict[Thread, int], more: dict[Thread, int]) -> None:
    for thread, count in more.items():
        if known.get(thread, 0) < count:
            known[thread] = count
