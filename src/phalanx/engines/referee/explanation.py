"""Why ranks cannot move or calls do not fit, from all that a referee knows. Used by the
referee.

The order in which explanations are tried is that of the threads engine, so that reports read
the same. Deciding is done in `checks/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from phalanx.backend.evidence.call_history import add_parting
from phalanx.engines.referee.call_records import Entry, Records
from phalanx.engines.referee.group_mailbox import GroupMailbox
from phalanx.matching.divergence import Pace
from phalanx.matching.other_group import find_other_group
from phalanx.matching.waitgraph import find_deadlock
from phalanx.model import Deadlock, Snapshot, Verdict

_Any = TypeVar("_Any", bound=Verdict)


def explain_waiting(
    records: Records,
    snapshot: Snapshot,
    places: Iterable[GroupMailbox],
    *,
    partial: bool,
    compare: bool,
) -> Verdict | None:
    """Why these ranks can never move; `compare` whether calls on other groups may be it."""
    gone = [view.rank for view in snapshot.ranks if view.status == "finished"]
    if compare:
        waits = [view.wait for view in snapshot.ranks if view.wait and view.status == "waiting"]
        sends = [send.as_op() for place in places for send in place.pending_sends()]
        other = find_other_group(waits, sends, gone)
        if other is not None:
            return other
    deadlock = find_deadlock(snapshot, partial=partial)
    if deadlock is None:
        return None
    return with_parting(records, deadlock, _concerned(deadlock), gone)


def with_parting(
    records: Records, verdict: _Any, ranks: Iterable[int], ended: Iterable[int] = ()
) -> _Any:
    """The verdict, with the place where the ways of these ranks parted if that is clear."""
    return add_parting(verdict, ranks, ended, trail=_trails_of(records), name_place=_name)


def _concerned(deadlock: Deadlock) -> list[int]:
    """Whose ways are compared: those who wait, and those who have returned."""
    blocks = [b for b in deadlock.blocks if b.view.status in ("waiting", "finished")]
    return sorted({rank for block in blocks for rank in block.ranks})


def _trails_of(records: Records) -> Callable[[int, int], list[Pace]]:
    def trail(rank: int, length: int) -> list[Pace]:
        last = islice(reversed(records.journals[rank]), length)
        return [_pace(entry) for entry in last][::-1]

    return trail


def _pace(entry: Entry) -> Pace:
    place, number = entry.place, entry.number
    slot = None if number is None else (id(place), number)
    return Pace(slot, place.ranks, entry.form.site, entry.form.name, number)


def _name(site: Any) -> str:
    return str(site) if site is not None else "a call without a line"
