"""`exhaustive`: all behaviours of a program, each once. Dynamic partial-order reduction.

The source sets of Abdulla, Aronis, Jonsson and Sagonas, with sleep sets. After each run, every
race in it (`races.py`) says at which earlier point which other thread has to go first; where
that is nothing new, nothing is added. Of the values that a step may end with all are tried. A
thread sleeps at a point once all that begins with its step there has been tried, until a
conflicting step is made; a run in which all threads sleep repeats a behaviour that is known.

The search is a proof only if the program's runs depend on the choices alone. Where a run does
not follow the choices of an earlier one, `parted` is set, and the search never calls itself
complete.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from phalanx.explore.strategies.races import Race, find_races, initials_of
from phalanx.explore.trace import Candidate, Choice, Thread, Trace, conflicts


class _Point:
    """A choice of the present run, and what is known about its alternatives."""

    __slots__ = ("asleep", "candidates", "chosen", "todo", "values")

    def __init__(
        self,
        candidates: Sequence[Candidate],
        values: int,
        asleep: dict[Thread, Candidate],
        chosen: int,
    ) -> None:
        self.candidates = candidates
        self.values = values
        """How many there are; 0 where a thread is chosen."""
        self.asleep = asleep
        """Threads whose steps have all been tried here, or need not be."""
        self.chosen = chosen
        self.todo: set[Thread] = set()
        """Threads whose steps are to be tried as well."""

    @property
    def thread(self) -> Thread:
        return self.candidates[self.chosen].thread

    def next(self) -> bool:
        """Go on to the next alternative; False if there is none."""
        if self.values:
            self.chosen += 1
            return self.chosen < self.values
        done = self.candidates[self.chosen]
        self.asleep[done.thread] = done
        self.todo -= self.asleep.keys()
        for index, candidate in enumerate(self.candidates):
            if candidate.thread in self.todo:
                self.chosen = index
                return True
        return False


class Exhaustive:
    name = "exhaustive"

    def __init__(self, seed: int = 0) -> None:
        self.redundant = 0
        """How many runs repeated a behaviour that was known."""
        self.parted = False
        """Whether a run did not follow the choices of an earlier one."""
        self._path: list[_Point] = []
        self._is_first = True
        self._redundant_from: int | None = None
        """From which choice of this run on everything is known from another run."""
        self._since = 0
        """Where this run leaves the one before."""
        self._random = random.Random(seed)
        """Used once the search has lost its way."""
        self._is_lost = False

    def begin(self) -> bool:
        self._redundant_from = None
        if self._is_first:
            self._is_first = False
            return True
        while self._path and not self._path[-1].next():
            self._path.pop()
        self._since = max(len(self._path) - 1, 0)
        if not self._path and self.parted:
            self._is_lost = True
        return bool(self._path) or self._is_lost

    def pick(self, candidates: Sequence[Candidate], usual: int, trace: Trace) -> int:
        if self._is_lost:
            return self._random.randrange(len(candidates))
        depth = len(trace.choices)
        if self._redundant_from is not None and depth >= self._redundant_from:
            return usual
        if depth < len(self._path):
            point = self._path[depth]
            if not point.values and tuple(point.candidates) == tuple(candidates):
                return point.chosen
            self._part(depth)
            return usual
        asleep = self._asleep_after(trace)
        chosen = _first_awake(candidates, usual, asleep)
        if chosen is None:
            self._redundant_from = depth
            return usual
        self._path.append(_Point(candidates, 0, asleep, chosen))
        return chosen

    def pick_value(self, step: Candidate, values: Sequence[str], trace: Trace) -> int:
        if self._is_lost:
            return self._random.randrange(len(values))
        depth = len(trace.choices)
        if self._redundant_from is not None and depth >= self._redundant_from:
            return 0
        if depth < len(self._path):
            point = self._path[depth]
            if point.values == len(values):
                return point.chosen
            self._part(depth)
            return 0
        self._path.append(_Point((step,), len(values), self._asleep_after(trace), 0))
        return 0

    def made(self, choice: Choice) -> None: ...

    def in_vain(self, index: int) -> None:
        """What comes of that value comes of another one as well."""
        if self._redundant_from is None or index < self._redundant_from:
            self._redundant_from = index + 1

    def end(self, trace: Trace) -> None:
        if self._is_lost:
            return
        if len(trace.choices) < len(self._path):
            self._part(len(trace.choices))
        if self._redundant_from is not None:
            self.redundant += not self.parted
            del self._path[self._redundant_from :]
        until = len(trace.choices) if self._redundant_from is None else self._redundant_from
        for race in find_races(trace, self._since, until):
            if race.first < len(self._path):
                self._add(self._path[race.first], race)

    def _add(self, point: _Point, race: Race) -> None:
        """Let the other order of the race be tried, unless it is or was."""
        if point.values:
            return
        offered = {each.thread: each for each in point.candidates}
        first = initials_of(race.later)
        possible = first & offered.keys()
        if point.thread in possible or possible & (point.todo | point.asleep.keys()):
            return
        if possible:
            point.todo.add(min(possible))
        else:
            point.todo |= offered.keys() - point.asleep.keys()

    def _asleep_after(self, trace: Trace) -> dict[Thread, Candidate]:
        """Who sleeps after the last choice: those who slept before it and whose steps do not
        conflict with it."""
        if not self._path:
            return {}
        point, made = self._path[-1], trace.choices[-1]
        return {
            thread: step
            for thread, step in point.asleep.items()
            if thread != made.thread and not conflicts(step, made)
        }

    def _part(self, depth: int) -> None:
        """The run is not as it was: nothing can be said about what follows."""
        self.parted = True
        if self._redundant_from is None or depth < self._redundant_from:
            self._redundant_from = depth


def _first_awake(
    candidates: Sequence[Candidate], usual: int, asleep: dict[Thread, Candidate]
) -> int | None:
    if candidates[usual].thread not in asleep:
        return usual
    for index, candidate in enumerate(candidates):
        if candidate.thread not in asleep:
            return index
    return None
