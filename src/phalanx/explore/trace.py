"""What a run that is explored has chosen: one choice after the other. No torch.

Written by `run_choices.py`, read by strategies, by replays and by the story of a failure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Thread = tuple[int, int]
"""A rank, and the number of its thread: 0 its own, then those that it started, in order."""


class Candidate(NamedTuple):
    """A thread that could make its step."""

    thread: Thread
    kind: str
    places: tuple[Hashable, ...]
    writes: bool


class Choice(NamedTuple):
    """A step that was made, or the value that it ended with."""

    thread: Thread
    kind: str
    places: tuple[Hashable, ...]
    writes: bool
    mark: Any
    """The program's line, as `callsite.mark` gives it."""
    chosen: int
    """The index in `candidates` or `values`."""
    usual: int
    """The index that the default order has there: the thread of the choice before goes on if it
    can, else the first; of values the first."""
    candidates: tuple[Candidate, ...]
    """All that could make a step; empty for a value."""
    values: tuple[str, ...]
    """What a value was chosen from; empty for a step."""
    known: dict[Thread, int]
    """Its vector clock: of each thread, how many choices had happened, itself included."""
    before: dict[Thread, int]
    """The vector clock of its thread just before: without what it heard of at its places."""

    @property
    def is_usual(self) -> bool:
        return self.chosen == self.usual

    @property
    def value(self) -> str:
        """What the step ended with: what was chosen, or what came where that could not."""
        return self.values[self.chosen if self.chosen < len(self.values) else 0]


class BlockedStep(NamedTuple):
    """A step that a thread could not make when it wanted to. It waits until it can."""

    thread: Thread
    kind: str
    places: tuple[Hashable, ...]
    writes: bool
    position: int
    """How many choices had been made."""
    before: dict[Thread, int]
    """The vector clock of its thread."""


@dataclass
class Trace:
    """The choices of one run, in order."""

    choices: list[Choice] = field(default_factory=list)
    waits: list[BlockedStep] = field(default_factory=list)

    def has_alternatives(self) -> bool:
        """Whether anything could have been chosen otherwise."""
        return any(len(each.candidates or each.values) > 1 for each in self.choices)

    def deviations(self) -> dict[int, int]:
        """Where the run left the default order: index of the choice, and what was chosen."""
        return {
            index: event.chosen
            for index, event in enumerate(self.choices)
            if not event.is_usual
        }


def conflicts(
    one: Candidate | Choice | BlockedStep, other: Candidate | Choice | BlockedStep
) -> bool:
    """Whether their order may matter: they share a place and one of them writes."""
    if not (one.writes or other.writes):
        return False
    return any(place in other.places for place in one.places)


FAIR_AFTER = 2000
"""Choices of a run after which all threads take turns: one that makes calls until another has
done its part would else never let it."""


def usual_of(candidates: Sequence[Candidate], last: Thread | None) -> int:
    """The index of the thread that goes on in the default order."""
    for index, candidate in enumerate(candidates):
        if candidate.thread == last:
            return index
    return 0
