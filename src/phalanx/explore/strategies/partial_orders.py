"""`pos`: each step that is about to be made has a random priority, and the highest goes first.

The partial-order sampling of Yuan, Yang and Gu: when a step is made, those that conflict with
it draw anew. So the orders of steps that conflict are sampled nearly evenly, however many other
steps lie between them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from phalanx.explore.trace import Candidate, Choice, Thread, Trace, conflicts


class PartialOrders:
    name = "pos"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._runs = 0
        self._random = random.Random(seed)
        self._priorities: dict[Thread, float] = {}
        """Of the step that each thread is about to make."""

    def begin(self) -> bool:
        self._random = random.Random(f"{self._seed}.{self._runs}")
        self._runs += 1
        self._priorities = {}
        return True

    def pick(self, candidates: Sequence[Candidate], usual: int, trace: Trace) -> int:
        priorities, best, chosen = self._priorities, -1.0, 0
        for index, candidate in enumerate(candidates):
            priority = priorities.get(candidate.thread)
            if priority is None:
                priority = priorities[candidate.thread] = self._random.random()
            if priority > best:
                best, chosen = priority, index
        return chosen

    def pick_value(self, step: Candidate, values: Sequence[str], trace: Trace) -> int:
        return self._random.randrange(len(values))

    def made(self, choice: Choice) -> None:
        priorities = self._priorities
        priorities.pop(choice.thread, None)
        for candidate in choice.candidates:
            if candidate.thread in priorities and conflicts(candidate, choice):
                del priorities[candidate.thread]

    def in_vain(self, index: int) -> None: ...

    def end(self, trace: Trace) -> None: ...
