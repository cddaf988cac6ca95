"""Bounded memory for the events of one rank: the newest are kept, and what was dropped counted.

The writer makes one ring for each rank. A ring has four lanes, so that what happens often
does not push out what happens once: `calls` (what was posted), `flow` (what became of it, and
stores), `notes` (what was seen at some of the calls) and `rare` (all the rest). Each lane is a
deque that forgets by itself, because the hot path appends to it directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from phalanx.journal.events import CallId, Noted, Place, with_sites

EVENT_BYTES = 768
"""An upper estimate for one event. `signature` and the like are left out where they would
exceed it, so that a bound on bytes is one on events."""

LEAST = 16
"""Events that a lane keeps in any case."""


class Ring:
    """One rank's events, oldest first. `posted`, `flowed`, `noted` and `added` count all that
    were ever added to the lanes: whoever appends to one counts up, too."""

    __slots__ = (
        "added",
        "calls",
        "first",
        "flow",
        "flowed",
        "noted",
        "notes",
        "posted",
        "rare",
    )

    def __init__(self, length: int, first: int = 0) -> None:
        """`first` is the serial of the first call: those of an earlier run may be met here."""
        self.calls: deque[Any] = deque(maxlen=length)
        self.flow: deque[Any] = deque(maxlen=length)
        self.notes: deque[Any] = deque(maxlen=max(LEAST, length // 4))
        self.rare: deque[Any] = deque(maxlen=max(LEAST, length // 4))
        self.first = self.posted = first
        self.flowed = 0
        self.noted = 0
        self.added = 0

    @property
    def dropped(self) -> int:
        """How many events were forgotten."""
        kept = sum(len(lane) for lane in self.lanes)
        return self.posted - self.first + self.flowed + self.noted + self.added - kept

    @property
    def lanes(self) -> tuple[deque[Any], ...]:
        return self.calls, self.flow, self.notes, self.rare

    @property
    def has_all_calls(self) -> bool:
        return self.posted - self.first == len(self.calls)

    def call(self, serial: int) -> Any:
        """A call that is kept; None otherwise."""
        place = serial - self.posted + len(self.calls)
        return self.calls[place] if 0 <= place < len(self.calls) else None

    def renumber(self, rank: int) -> None:
        """Give every event this rank."""
        for lane in self.lanes:
            events = [event._replace(rank=rank) for event in lane]
            lane.clear()
            lane.extend(events)

    def with_marks(self, rank: int, marks: Mapping[CallId, Place]) -> Ring:
        """A copy in which these calls of the rank have another mark."""
        made = Ring(self.calls.maxlen or 0)
        for own, lane in zip(self.lanes, made.lanes, strict=True):
            lane.extend(own)
        made.first, made.posted, made.flowed = self.first, self.posted, self.flowed
        made.noted, made.added = self.noted, self.added
        for place, call in enumerate(self.calls):
            if (rank, call.serial) in marks:
                made.calls[place] = call._replace(mark=marks[rank, call.serial])
        return made

    def resolved(self) -> Ring:
        """A copy that can be sent to another process."""
        made = Ring(self.calls.maxlen or 0)
        for own, lane in zip(self.lanes, made.lanes, strict=True):
            lane.extend(_resolved(event) for event in own)
        made.first = self.first
        made.posted, made.flowed = self.posted, self.flowed
        made.noted, made.added = self.noted, self.added
        return made

    def add(self, event: Any) -> None:
        """Add a rare event."""
        self.added += 1
        self.rare.append(event)

    def note(self, event: Any) -> None:
        """Add what was seen at a call."""
        self.noted += 1
        self.notes.append(event)


def _resolved(event: Any) -> Any:
    if isinstance(event, Noted):
        event = event._replace(what=with_sites(event.what))
    return event._replace(mark=event.site)


def ring_length(ranks: int, *, count: int, size: int, least: int = LEAST) -> int:
    """How many events a lane may keep: `count` calls of all ranks together, but at least
    `least` of each, and never more than fit into `size` bytes with all lanes full.

    >>> ring_length(4, count=16384, size=64 << 20)
    4096
    >>> ring_length(4096, count=16384, size=64 << 20)
    16
    """
    fits = size * 2 // (5 * EVENT_BYTES * ranks)
    return max(LEAST, min(max(least, count // ranks), fits))
