"""Bounded memory for the events of one rank: the newest are kept, and what was dropped counted.

The writer makes one ring for each rank. A ring has three lanes, so that what happens often
does not push out what happens once: `calls` (what was posted), `flow` (what became of it, and
stores) and `rare` (all the rest). Each lane is a deque that forgets by itself, because the hot
path appends to it directly.
"""

from __future__ import annotations

from collections import deque
from typing import Any

EVENT_BYTES = 768
"""An upper estimate for one event. `signature` and the like are left out where they would
exceed it, so that a bound on bytes is one on events."""

LEAST = 16
"""Events that a lane keeps in any case."""


class Ring:
    """One rank's events, oldest first. `posted`, `flowed` and `noted` count all that were ever
    added to the lanes: whoever appends to one counts up, too."""

    __slots__ = ("calls", "first", "flow", "flowed", "noted", "posted", "rare")

    def __init__(self, length: int, first: int = 0) -> None:
        """`first` is the serial of the first call: those of an earlier run may be met here."""
        self.calls: deque[Any] = deque(maxlen=length)
        self.flow: deque[Any] = deque(maxlen=length)
        self.rare: deque[Any] = deque(maxlen=max(LEAST, length // 4))
        self.first = self.posted = first
        self.flowed = 0
        self.noted = 0

    @property
    def dropped(self) -> int:
        """How many events were forgotten."""
        kept = len(self.calls) + len(self.flow) + len(self.rare)
        return self.posted - self.first + self.flowed + self.noted - kept

    @property
    def has_all_calls(self) -> bool:
        return self.posted - self.first == len(self.calls)

    def call(self, serial: int) -> Any:
        """A call that is kept; None otherwise."""
        place = serial - self.posted + len(self.calls)
        return self.calls[place] if 0 <= place < len(self.calls) else None

    def renumber(self, rank: int) -> None:
        """All that is in here was this rank's."""
        for lane in (self.calls, self.flow, self.rare):
            events = [event._replace(rank=rank) for event in lane]
            lane.clear()
            lane.extend(events)

    def resolved(self) -> Ring:
        """A copy that can be sent to another process."""
        made = Ring(max(self.calls.maxlen or 0, len(self.rare)))
        for name in ("calls", "flow", "rare"):
            events = [event._replace(mark=event.site) for event in getattr(self, name)]
            getattr(made, name).extend(events)
        made.first = self.first
        made.posted, made.flowed, made.noted = self.posted, self.flowed, self.noted
        return made

    def add(self, event: Any) -> None:
        """A rare one."""
        self.noted += 1
        self.rare.append(event)


def ring_length(ranks: int, *, count: int, size: int, least: int = LEAST) -> int:
    """How many events a lane may keep: `count` calls of all ranks together, but at least
    `least` of each, and never more than fit into `size` bytes with all lanes full.

    >>> ring_length(4, count=16384, size=64 << 20)
    4096
    >>> ring_length(4096, count=16384, size=64 << 20)
    16
    """
    fits = size * 4 // (9 * EVENT_BYTES * ranks)
    return max(LEAST, min(max(least, count // ranks), fits))
