"""Schedules: who runs next. A small protocol, one class per policy.

Used by the baton at each hand-over. A schedule must be a pure function of its seed and of
the questions it was asked: it must never look at clocks, addresses or thread ids.
"""

from __future__ import annotations

import random
from typing import Protocol


class Schedule(Protocol):
    """Says whether ranks may be preempted, and picks the next strand; the same picks give the
    same run."""

    preempts: bool
    """Whether a rank may be made to wait at a call that would not block."""

    def pick(self, ready: int) -> int:
        """The index of the strand to run, of `ready` that stand in order of arrival."""
        ...


class FirstInFirstOut:
    """The strand that became ready first runs first, and runs until it must wait."""

    preempts = False

    def pick(self, ready: int) -> int:
        return 0


class SeededRandom:
    """Any ready strand may run next, also in place of one that could go on."""

    preempts = True

    def __init__(self, seed: int) -> None:
        self._below = random.Random(seed).randrange

    def pick(self, ready: int) -> int:
        return self._below(ready) if ready > 1 else 0


def schedule_from_seed(seed: int) -> Schedule:
    """Seed 0 is first-in-first-out; every other seed is a random schedule of its own.

    >>> schedule_from_seed(0).preempts, schedule_from_seed(7).preempts
    (False, True)
    """
    return SeededRandom(seed) if seed else FirstInFirstOut()
