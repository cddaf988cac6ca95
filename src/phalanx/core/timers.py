"""Deadlines of strands, and what is to happen at a moment by itself.

A strand has timers that it counts on, and limits that only end a wait. An *action* belongs to
no strand: an operation that takes a while completes by one. Used by the baton, which holds its
mutex meanwhile.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable

from phalanx.core.strand import PARKED, Strand


class Timers:
    """Who counts on which deadline. A strand has one at a time, `strand.limit`."""

    def __init__(self) -> None:
        self.pending = 0
        """How many strands count on a timer, and how many actions are to come."""
        self._heap: list[tuple[float, int, Strand]] = []
        self._actions: list[tuple[float, int, Callable[[], object]]] = []
        self._awaited: set[int] = set()
        """Numbers of actions that were not called off."""
        self._ids = itertools.count(1)

    def set(self, strand: Strand) -> None:
        """The strand counts on its limit."""
        strand.timer = next(self._ids)
        self.pending += 1
        heapq.heappush(self._heap, (strand.limit or 0.0, strand.timer, strand))

    def clear(self, strand: Strand) -> None:
        """The entry of a strand that woke early stays; its number is no longer valid."""
        if strand.timer:
            strand.timer = 0
            self.pending -= 1

    def add_action(self, moment: float, action: Callable[[], object]) -> Callable[[], None]:
        """The function that calls it off."""
        self.pending += 1
        number = next(self._ids)
        self._awaited.add(number)
        heapq.heappush(self._actions, (moment, number, action))

        def call_off() -> None:
            if number in self._awaited:
                self._awaited.remove(number)
                self.pending -= 1

        return call_off

    def next_moment(self, strands: Iterable[Strand]) -> float:
        """When the next deadline of any kind is, or the next action; one must be pending."""
        self._drop_void()
        moments = [s.limit for s in strands if s.state is PARKED and s.limit is not None]
        moments += [heap[0][0] for heap in (self._heap, self._actions) if heap]
        return min(moments)

    def take_due(self, strands: Iterable[Strand], now: float) -> list[Strand]:
        """Those whose deadline has passed, first come first; their timers are cleared."""
        self._drop_void()
        due = [
            strand
            for strand in strands
            if strand.limit is not None and strand.limit <= now and strand.state is PARKED
        ]
        due.sort(key=lambda strand: (strand.limit, strand.timer))
        for strand in due:
            self.clear(strand)
        return due

    def take_action(self, now: float) -> Callable[[], object] | None:
        """The next action whose moment has come, if any."""
        self._drop_void()
        if not self._actions or self._actions[0][0] > now:
            return None
        self.pending -= 1
        _, number, action = heapq.heappop(self._actions)
        self._awaited.remove(number)
        return action

    def _drop_void(self) -> None:
        while self._heap and self._heap[0][1] != self._heap[0][2].timer:
            heapq.heappop(self._heap)
        while self._actions and self._actions[0][1] not in self._awaited:
            heapq.heappop(self._actions)
