"""How engines write a journal: the rings of all ranks, and the groups that events refer to.

The threads engine makes one for each run, the referee one for its world. What happens with
every call is appended to a ring by whoever sees it, without a function in between; all else
comes through `JournalWriter.add`. Must never block: ranks may write from any thread.
"""

from __future__ import annotations

import itertools
from typing import Any

from phalanx.journal.events import Event, GroupRecord
from phalanx.journal.reader import Journal
from phalanx.journal.ring import Ring, ring_length

CALLS, CALLS_IN_FULL = 16384, 262144
"""How many calls of all ranks together are kept: usually, and where checks look back at all."""
LEAST_CALLS = 128
BYTES, BYTES_IN_FULL = 64 << 20, 512 << 20


class JournalWriter:
    """What a run, or a world, has written so far. `in_order` says that times are those at which
    things happened; a referee hears of them later, in no particular order."""

    def __init__(
        self,
        ranks: int,
        *,
        in_full: bool = False,
        in_order: bool = True,
    ) -> None:
        length = ring_length(
            ranks,
            count=CALLS_IN_FULL if in_full else CALLS,
            size=BYTES_IN_FULL if in_full else BYTES,
            least=LEAST_CALLS,
        )
        self.rings = [Ring(length) for _ in range(ranks)]
        self.groups: dict[int, GroupRecord] = {}
        """Those that ranks still have, by number."""
        self.in_order = in_order
        self._numbers = itertools.count()

    def group(self, name: str, ranks: tuple[int, ...]) -> GroupRecord:
        """A new group, before its first event."""
        made = GroupRecord(next(self._numbers), name, ranks)
        self.groups[made.number] = made
        return made

    def keep(self, group: GroupRecord) -> None:
        """A group of an earlier run of the same world is there in this one, too."""
        group.number = next(self._numbers)
        self.groups[group.number] = group

    def end(self, group: GroupRecord) -> None:
        """The last member has destroyed its end. Events that name the group keep it."""
        self.groups.pop(group.number, None)

    def add(self, event: Event) -> None:
        """A rare event; one that concerns no rank goes to the first."""
        self.rings[max(0, event.rank)].add(event)

    def reader(self) -> Journal:
        return Journal(self.rings, self.groups, in_order=self.in_order)


def kept_signature(signature: Any) -> Any:
    """The signature, if it is small enough to be kept."""
    return signature if len(signature) <= MOST_PARTS else None


MOST_PARTS = 4
"""Of a signature: an operation, a root or reduce op, and a tensor or two."""
