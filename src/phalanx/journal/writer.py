"""How engines write a journal: the rings of all ranks, and the groups that events refer to.

The threads engine makes one for each run, the referee one for its world. What happens with
every call is appended to a ring by whoever sees it, without a function in between; all else
comes through `JournalWriter.add`. Must never block: ranks may write from any thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

from phalanx.journal.events import (
    Event,
    FindingMade,
    GroupDestroyed,
    GroupMade,
    GroupRecord,
    Noted,
)
from phalanx.journal.reader import ClockOffset, Journal
from phalanx.journal.ring import Ring, ring_length
from phalanx.model import Verdict
from phalanx.system import monotonic

CALLS, CALLS_IN_FULL = 16384, 262144
"""How many calls of all ranks together are kept: usually, and where checks look back at all."""
LEAST_CALLS = 128
BYTES, BYTES_IN_FULL = 64 << 20, 512 << 20
MOST_RANKS = 16
"""Ranks listed in a `finding-made` event."""
MOST_NOTED = 1024
"""Notes of one rank that are kept once each."""
MOST_PARTS = 5
"""Parts of a signature that is kept: operation, root and reduce op, and a tensor or two."""


class JournalWriter:
    """What a run, or a world, has written so far. `in_order` says that times are those at which
    things happened; a referee hears of them later, in no particular order."""

    def __init__(
        self,
        ranks: int,
        *,
        in_full: bool = False,
        in_order: bool = True,
        after: JournalWriter | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`now` is the clock of those who write. `after` is the journal of the run before in
        the same world: serials and the numbers of groups go on, and the groups that ranks
        still have are said to be made, as they were."""
        length = ring_length(
            ranks,
            count=CALLS_IN_FULL if in_full else CALLS,
            size=BYTES_IN_FULL if in_full else BYTES,
            least=LEAST_CALLS,
        )
        firsts = [0] * ranks if after is None else [ring.posted for ring in after.rings]
        self.rings: list[Ring] = [Ring(length, first) for first in firsts]
        self.groups: dict[int, GroupRecord] = {}
        """Those that ranks still have, by number."""
        self.in_order = in_order
        self.now = now
        self.clocks: dict[int, ClockOffset] = {}
        """What was added to the times of ranks on other machines."""
        self._numbers: Iterator[int] = itertools.count() if after is None else after._numbers
        self._former: dict[int, GroupRecord] = {} if after is None else dict(after.groups)
        for event in () if after is None else _still_there(after):
            self.add(event)

    def keep(self, group: GroupRecord) -> None:
        """A group is new, or is there from an earlier run of the same world: then it has a
        number, by which the journal of that run knows it, too."""
        if self._former.get(group.number) is not group:
            group.number = next(self._numbers)
        self.groups[group.number] = group

    def group(self, name: str, ranks: tuple[int, ...]) -> GroupRecord:
        """Make a new group."""
        made = GroupRecord(0, name, ranks)
        self.keep(made)
        return made

    def exchange(self, one: int, other: int) -> None:
        """Two ranks turn out to have each other's number. Neither has made a call yet."""
        rings = self.rings
        rings[one], rings[other] = rings[other], rings[one]
        for rank in (one, other):
            rings[rank].renumber(rank)

    def end(self, group: GroupRecord) -> None:
        """The last member has destroyed its end. Events that name the group keep it."""
        self.groups.pop(group.number, None)

    def add(self, event: Event) -> None:
        """A rare event."""
        self.rings[event.rank].add(event)

    def found(self, verdict: Verdict) -> None:
        """A check has found this."""
        rank = min(min(verdict.ranks, default=0), len(self.rings) - 1)
        kind, severity, ranks = verdict.kind, verdict.severity, verdict.ranks
        self.add(FindingMade(self.now(), rank, 0, None, kind, severity, ranks[:MOST_RANKS]))

    def reader(self) -> Journal:
        return Journal(self.rings, self.groups, in_order=self.in_order, clocks=self.clocks)


class NoteWriter(Protocol):
    """One rank's part of the journal, for those who note what only the rank can see."""

    rank: int
    ring: Ring
    now: Callable[[], float]
    """The journal's clock."""
    noted: set[Any]
    """What is there already and is not noted again."""
    looks: dict[Any, int]
    """How often somebody has looked, where that is done a few times only."""


def note_once(writer: NoteWriter, key: Hashable, event: Noted) -> None:
    """A rare note that is made again and again: it is kept the first time."""
    noted = writer.noted
    if key not in noted and len(noted) < MOST_NOTED:
        noted.add(key)
        writer.ring.add(event)


def _still_there(journal: JournalWriter) -> list[GroupMade]:
    made: dict[Hashable, GroupMade] = {}
    for ring in journal.rings:
        for event in ring.rare:
            if isinstance(event, GroupMade):
                made[event.rank, event.group] = event
            elif isinstance(event, GroupDestroyed):
                made.pop((event.rank, event.group), None)
    return list(made.values())
