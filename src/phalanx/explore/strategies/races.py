"""Races: pairs of steps of a run that conflict, and that might have come in the other order.

What happens before what is known from vector clocks. Used by the exhaustive search, which
tries the other order of each race, and no other orders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from phalanx.explore.trace import BlockedStep, Choice, Thread, Trace, conflicts


class Race(NamedTuple):
    """The step at index `first` could come after the one that is the last of `later`."""

    first: int
    later: tuple[Choice | BlockedStep, ...]
    """What comes in its place: all steps after the first that do not need it, and the one that
    races with it as the last."""


def find_races(trace: Trace, since: int, until: int) -> Iterator[Race]:
    """All pairs that no third step orders, and of which the later one is among these choices.
    A step that could not be made, and waited, races with those that made it wait: as things
    stood when it began to wait, and as they stand when it is made, or at the end."""
    finder = _Finder(trace.choices)
    waits = iter(trace.waits)
    wait = next(waits, None)
    for index in range(len(trace.choices) + 1):
        begun = finder.waiting_again(index)
        while wait is not None and wait.position <= index:
            begun.append(wait)
            wait = next(waits, None)
        for each in begun:
            races = finder.note_wait(each)
            if since < index <= until:
                yield from races
        if index == len(trace.choices) or index >= until:
            break
        choice = trace.choices[index]
        if index >= since and choice.candidates:
            yield from finder.races_of(choice)
            yield from finder.races_with_hindrances(choice)
        finder.add(index, choice)
    if until == len(trace.choices):
        for each in finder.still_waiting():
            yield from finder.races_with_hindrances(each)


class _Finder:
    def __init__(self, choices: Sequence[Choice]) -> None:
        self._choices = choices
        self._made = 0
        self._readers: dict[Hashable, list[int]] = defaultdict(list)
        self._writers: dict[Hashable, list[int]] = defaultdict(list)
        self._last: dict[Thread, int] = {}
        self._waiting: dict[Thread, BlockedStep] = {}
        """Of each thread the last step that it waited for."""
        self._hindrances: dict[Thread, set[int]] = defaultdict(set)
        """What raced with the step that a thread waits for when it began to wait."""

    def add(self, index: int, choice: Choice) -> None:
        for place in choice.places:
            (self._writers if choice.writes else self._readers)[place].append(index)
        self._last[choice.thread] = index
        self._made = index + 1
        self._hindrances.pop(choice.thread, None)

    def note_wait(self, wait: BlockedStep) -> list[Race]:
        races = list(self.races_of(wait))
        self._waiting[wait.thread] = wait
        self._hindrances[wait.thread].update(race.first for race in races)
        return races

    def waiting_again(self, index: int) -> list[BlockedStep]:
        """Those that wait for several places, of which the choice before changed one: now they
        may wait for another one."""
        if not index or not self._hindrances:
            return []
        made = self._choices[index - 1]
        waits = self.still_waiting()
        return [wait for wait in waits if len(wait.places) > 1 and conflicts(wait, made)]

    def still_waiting(self) -> list[BlockedStep]:
        return [self._waiting[thread] for thread in self._hindrances]

    def races_of(self, later: Choice | BlockedStep) -> Iterator[Race]:
        known = later.before
        for index in self._conflicting(later):
            first = self._choices[index]
            if first.known[first.thread] <= known.get(first.thread, 0):
                continue  # it is ordered anyway
            known = {
                thread: max(known.get(thread, 0), first.known.get(thread, 0))
                for thread in (*known, *first.known)
            }
            while not self._choices[index].candidates:
                index -= 1  # a value belongs to the step before it
            if self._could_be_first(index, later):
                yield Race(index, (*self._not_after(index), later))

    def races_with_hindrances(self, later: Choice | BlockedStep) -> Iterator[Race]:
        for index in self._hindrances.get(later.thread, ()):
            first = self._choices[index]
            if first.known[first.thread] > later.before.get(first.thread, 0):
                yield Race(index, (*self._not_after(index), later))

    def _conflicting(self, later: Choice | BlockedStep) -> list[int]:
        """The earlier steps that conflict with it, the last one first."""
        found: set[int] = set()
        for place in later.places:
            found.update(self._writers.get(place, ()))
            if later.writes:
                found.update(self._readers.get(place, ()))
        return sorted(found, reverse=True)

    def _could_be_first(self, index: int, later: Choice | BlockedStep) -> bool:
        """Not if it waited for this very step: what waits for one place to be as it needs it
        needs the last step that changed it."""
        if len(later.places) > 1 or self._last.get(later.thread, -1) > index:
            return True
        if any(each.thread == later.thread for each in self._choices[index].candidates):
            return True
        wait = self._waiting.get(later.thread)
        return wait is None or wait.position > index or wait.places != later.places

    def _not_after(self, index: int) -> Iterator[Choice]:
        first = self._choices[index]
        count = first.known[first.thread]
        for choice in self._choices[index + 1 : self._made]:
            if choice.known.get(first.thread, 0) < count:
                yield choice


def initials_of(steps: Sequence[Choice | BlockedStep]) -> set[Thread]:
    """The threads that may go first in some order of these steps: those whose first step needs
    none of the others."""
    found: set[Thread] = set()
    seen: set[Thread] = set()
    earlier: list[Choice] = []
    for step in steps:
        if step.thread not in seen:
            seen.add(step.thread)
            if not any(_needs(step, each) for each in earlier):
                found.add(step.thread)
        if isinstance(step, Choice):
            earlier.append(step)
    return found


def _needs(step: Choice | BlockedStep, earlier: Choice) -> bool:
    if isinstance(step, Choice):
        return step.known.get(earlier.thread, 0) >= earlier.known[earlier.thread]
    known = step.before.get(earlier.thread, 0) >= earlier.known[earlier.thread]
    return known or conflicts(step, earlier)
