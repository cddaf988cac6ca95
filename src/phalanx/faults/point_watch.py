"""One rank's way to the points of a plan: counts, and says which faults strike now.

Every engine feeds it: `at_call` before each call that the rank makes of its groups (what the
journal calls `posted`), `at_store` before each operation of the program itself on a store,
`at_line` before each line of a watched file (`line_tracing.py` does). What strikes is the
engine's to carry out. Moments belong to the run: `moments_of`. Threads of a rank may call it at
the same time. No torch, no waiting.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from phalanx.faults.fault_points import CallPoint, LinePoint, MomentPoint, StorePoint
from phalanx.faults.fault_values import Fault, Partition

Struck = tuple[Fault, ...]
"""Faults that strike at a point, in the order of the plan."""


class PointWatch:
    """Of one rank. A point is passed once, so each of its faults strikes once.

    >>> from phalanx.faults import parse_faults
    >>> watch = PointWatch(parse_faults("kill(rank=1, at=call(2))"), rank=1)
    >>> watch.at_call(), watch.at_call()
    ((), (kill(rank=1, at=call(2)),))
    """

    def __init__(self, plan: Iterable[Fault], rank: int) -> None:
        self._at_calls: defaultdict[int, list[Fault]] = defaultdict(list)
        self._at_stores: defaultdict[int, list[Fault]] = defaultdict(list)
        self._at_lines: dict[LinePoint, list[Fault]] = {}
        for fault in plan:
            if getattr(fault, "rank", None) == rank:
                self._note(fault)
        self._calls = itertools.count(1)  # to take a number of it is one step for all threads
        self._stores = itertools.count(1)
        self._lines = {point: itertools.count(1) for point in self._at_lines}
        self._files: dict[str, tuple[LinePoint, ...]] = {}

    def _note(self, fault: Fault) -> None:
        point = fault.point
        if isinstance(point, CallPoint):
            self._at_calls[point.n].append(fault)
        elif isinstance(point, StorePoint):
            self._at_stores[point.n].append(fault)
        elif isinstance(point, LinePoint):
            self._at_lines.setdefault(point, []).append(fault)

    @property
    def has_lines(self) -> bool:
        """Whether any fault is at a line: else nobody needs to trace."""
        return bool(self._at_lines)

    def at_call(self) -> Struck:
        """The rank is about to make its next call."""
        return tuple(self._at_calls.get(next(self._calls), ()))

    def at_store(self) -> Struck:
        """The rank is about to make its next operation on a store."""
        return tuple(self._at_stores.get(next(self._stores), ()))

    def lines_in(self, path: str) -> tuple[LinePoint, ...]:
        """The points that are in this file."""
        found = self._files.get(path)
        if found is None:
            found = tuple(point for point in self._at_lines if point.is_in(path))
            self._files[path] = found
        return found

    def at_line(self, path: str, number: int) -> Struck:
        """The rank is about to execute this line."""
        return tuple(
            fault
            for point in self.lines_in(path)
            if point.number == number and next(self._lines[point]) == point.n
            for fault in self._at_lines[point]
        )


class Moment(NamedTuple):
    """A time at which something happens by itself, in seconds after the run began."""

    seconds: float
    fault: Fault
    ends: bool = False
    """Whether the fault ends there, as a partition does."""


def moments_of(plan: Iterable[Fault]) -> list[Moment]:
    """When faults of the plan begin and end by the clock, in order of time. What begins where a
    rank comes to a point is not among them, nor when that ends."""
    found: list[Moment] = []
    for fault in plan:
        if isinstance(fault, Partition):
            start, end = fault.during
            found.append(Moment(start, fault))
            if end is not None:
                found.append(Moment(end, fault, ends=True))
        elif isinstance(fault.point, MomentPoint):
            found.append(Moment(fault.point.seconds, fault))
    return sorted(found, key=lambda moment: moment.seconds)
