"""`pct`: threads have priorities, and a few change points lower that of the one that goes on.

The probabilistic concurrency testing of Burckhardt, Kothari, Musuvathi and Nagarakatte: a bug
that needs d steps in a certain order, among n threads and k steps, is found by one run with a
chance of at least 1 / (n * k ** (d - 1)). The length k is learnt from earlier runs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from phalanx.explore.trace import FAIR_AFTER, Candidate, Choice, Thread, Trace

DEPTHS = (1, 2, 2, 3, 3, 4)
"""How many orderings a bug may need: one of these is drawn for each run."""
FIRST_LENGTH = 30
"""Of a run, before any has been seen."""


class ChangePoints:
    name = "pct"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._runs = 0
        self._random = random.Random(seed)
        self._length = FIRST_LENGTH
        self._steps = 0
        self._priorities: dict[Thread, float] = {}
        self._points: dict[int, int] = {}
        """At which step which priority is given; the least at the last one."""

    def begin(self) -> bool:
        self._random = draw = random.Random(f"{self._seed}.{self._runs}")
        self._runs += 1
        self._steps = 0
        self._priorities = {}
        changes = min(draw.choice(DEPTHS) - 1, self._length)
        points = draw.sample(range(self._length), changes)
        self._points = {point: -number for number, point in enumerate(points, 1)}
        return True

    def pick(self, candidates: Sequence[Candidate], usual: int, trace: Trace) -> int:
        if self._steps >= FAIR_AFTER:
            return self._random.randrange(len(candidates))
        priorities = self._priorities
        for candidate in candidates:
            if candidate.thread not in priorities:
                priorities[candidate.thread] = self._random.random()
        lowered = self._points.get(self._steps)
        self._steps += 1
        if lowered is not None:
            first = max(candidates, key=lambda each: priorities[each.thread])
            priorities[first.thread] = lowered
        ranked = [priorities[each.thread] for each in candidates]
        return ranked.index(max(ranked))

    def pick_value(self, step: Candidate, values: Sequence[str], trace: Trace) -> int:
        return self._random.randrange(len(values))

    def made(self, choice: Choice) -> None: ...

    def in_vain(self, index: int) -> None: ...

    def end(self, trace: Trace) -> None:
        """The longest run so far says between which steps changes are worth their while."""
        length = max(1, self._steps)
        self._length = length if self._runs == 1 else max(self._length, length)
