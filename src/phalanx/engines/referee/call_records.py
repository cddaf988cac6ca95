"""What the ranks of a world did, as the referee heard of it, for checks that look back at the
end.

The referee adds every call; ranks send along what only they can see (`notes`, by kind). Who
judges it is `end_of_run.py`. Must never decide anything.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from phalanx.engines.remote.announced_calls import AnnouncedCall, GroupMailbox
from phalanx.matching.announcement import Form

JOURNAL = 262144
LEAST_JOURNAL = 128
"""How many entries are kept: of all ranks together, and of each at least."""


class Entry(NamedTuple):
    """One call of a rank. `number` is None for a message."""

    place: GroupMailbox
    member: int
    form: Form
    number: int | None
    asynchronous: bool
    call_id: int = 0


class Records:
    """Of all ranks, from the first call on their groups."""

    def __init__(self, size: int) -> None:
        self.length = max(LEAST_JOURNAL, JOURNAL // size)
        self.journals: list[deque[Entry]] = [deque(maxlen=self.length) for _ in range(size)]
        self.sources: dict[tuple[int, int], int | None] = {}
        """Of receives from any source, by rank and call id: the member that they took from."""
        self.told: set[Any] = set()
        """Findings about journals, which go on from call to call."""
        self.threaded = False
        """Whether a rank made calls in several threads: whose is which is not known here."""
        self.begin()

    def begin(self) -> None:
        """A new call of the program."""
        self.notes: dict[str, dict[int, Any]] = {}

    def add(self, call: AnnouncedCall, *, asynchronous: bool = False, threads: int = 1) -> None:
        """Before the call meets others, which gives it its number."""
        place, member = call.place, call.member
        number = None if call.form.is_message else place.next_number[member]
        entry = Entry(place, member, call.form, number, asynchronous, call.call_id)
        if call.is_any_source:
            self.sources[call.rank, call.call_id] = None
        self.journals[call.rank].append(entry)
        self.threaded = self.threaded or threads > 1

    def note(self, rank: int, kind: str, what: Any) -> None:
        self.notes.setdefault(kind, {})[rank] = what

    @property
    def is_whole(self) -> bool:
        return all(len(journal) < self.length for journal in self.journals)
