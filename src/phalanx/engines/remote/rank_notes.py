"""What a rank in a process of its own writes into the journal by itself, and how that travels.

The referee keeps the journal and writes what ranks announce. What only a rank sees (the
program's frames, who refers to a group, what was destroyed) it writes into a small ring of its
own; the referee takes that in when the rank's program has ended. Groups travel by their key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.engines.serialization.plain_messages import dump_plain, load_plain
from phalanx.journal.events import GroupRecord
from phalanx.journal.ring import Ring
from phalanx.system import monotonic

LENGTH = 16384
"""Of the ring; a fourth of that in each lane that is used here."""


class RankNotes:
    """One rank's own part of the journal, until it is told."""

    now = staticmethod(monotonic)

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.forget()

    def forget(self) -> None:
        self.ring = Ring(LENGTH)
        self.noted: set[Any] = set()
        self.looks: dict[Any, int] = {}

    def take(self, keys: Mapping[GroupRecord, str]) -> bytes | None:
        """All of it, once, to be read by `read_notes`; None if there is nothing. Groups without
        a key are unknown to the referee, and what concerns them is left out."""
        lanes = {
            name: [event for event in lane if _is_told(event, keys)]
            for name, lane in (("notes", self.ring.notes), ("rare", self.ring.rare))
        }
        self.forget()
        if not any(lanes.values()):
            return None
        return dump_plain(lanes, keys)


def read_notes(data: bytes, groups: Mapping[str, GroupRecord]) -> dict[Any, list[Any]]:
    """The events by lane, of groups that are known here."""
    lanes: dict[Any, list[Any]] = load_plain(data, lambda key: groups.get(key, _UNKNOWN))
    return {
        name: [event for event in events if _UNKNOWN not in event]
        for name, events in lanes.items()
    }


_UNKNOWN = GroupRecord(0, "unknown", ())


def _is_told(event: Any, keys: Mapping[GroupRecord, str]) -> bool:
    return all(each in keys for each in event if isinstance(each, GroupRecord))
