"""A member of a group that does not come to a call in which the others wait.

Used by the referee for deadlocks. Ranks that wait for each other on two groups have either left
a call out or use the groups in another order. That one left a call out is shown

- by what it did before: it came to where it waits each time after the call that is missing
  now;
- by the source: where it waits nobody comes but past the place of the missing call.

If neither shows it, and one group is part of the other, it is said which member has not come to
the smaller one; otherwise nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import NamedTuple

from phalanx.journal.events import GroupRecord, Posted
from phalanx.journal.reader import Journal
from phalanx.matching.hints import name_ranks
from phalanx.matching.uneven.call_sites import Sites, key_of
from phalanx.matching.uneven.ways_past import comes_past, find_ways_past
from phalanx.model import Absence, Deadlock, Group, Op, Site, Wait

MOST_CALLS = 4096
"""How many calls of a rank are looked at."""

Records = Mapping[Group, GroupRecord]


class OpenSlot(NamedTuple):
    """A collective that ranks wait in, one of their calls, and those that have not come."""

    op: Op
    waiting: tuple[int, ...]
    absent: tuple[int, ...]


def with_absence(deadlock: Deadlock, journal: Journal, records: Records) -> Deadlock:
    """The deadlock, with the members that have not come to a call on a group, if that explains
    it; at fault are those that are known to have left it out."""
    slots = _open_slots(deadlock)
    if deadlock.cause == "finished-peer":
        return _with_ended(deadlock, slots, journal, records)
    if deadlock.cause != "cycle" or not slots.keys() >= set(deadlock.cycle):
        return deadlock
    chosen = list(dict.fromkeys(slots[rank] for rank in deadlock.cycle))
    if len(chosen) != 2 or chosen[0].op.group == chosen[1].op.group:
        return deadlock
    look = _Absentees(journal, records)
    pairs = (chosen, chosen[::-1])
    changed = [pair for pair in pairs if look.has_changed(*pair)]
    passed = [pair for pair in pairs if look.has_passed(*pair)]
    if len(changed) == 1:
        found = look.absence(*changed[0])
        if found is not None:
            hint = look.tell_change(*changed[0])
            return replace(deadlock, absence=found, ranks=found.absent, hint=hint)
    elif len(passed) == 1:
        found = look.absence(*passed[0])
        if found is not None:
            at_fault = deadlock.ranks if _is_majority(found) else found.absent
            hint = look.tell_passing(*passed[0])
            return replace(deadlock, absence=found, ranks=at_fault, hint=hint)
    one, other = sorted(chosen, key=lambda slot: len(slot.op.group.ranks))
    found = None
    if set(one.op.group.ranks) < set(other.op.group.ranks):
        found = look.absence(one, other)
    if found is None:
        return deadlock
    hint = (
        f"{name_ranks(found.absent)} left that call out, or the groups are used in another "
        f"order there than by {name_ranks(found.waiting)}"
    )
    return replace(deadlock, absence=found, hint=hint)


def _is_majority(absence: Absence) -> bool:
    """Whether more members have not come than have."""
    return len(absence.absent) > len(absence.waiting)


def _with_ended(
    deadlock: Deadlock, slots: Mapping[int, OpenSlot], journal: Journal, records: Records
) -> Deadlock:
    """Members that have ended, if nothing else has been said about their number of calls."""
    if deadlock.hint is not None:
        return deadlock
    for slot in dict.fromkeys(slots.values()):
        if slot.absent and set(deadlock.missed).issuperset(slot.absent):
            found = _Absentees(journal, records).absence(slot, None)
            return replace(deadlock, absence=found)
    return deadlock


def _open_slots(deadlock: Deadlock) -> dict[int, OpenSlot]:
    """By rank: the collective that it waits in."""
    waiting: dict[tuple[Group, int], list[int]] = {}
    first: dict[tuple[Group, int], Wait] = {}
    for block in deadlock.blocks:
        wait = block.view.wait
        if wait is None or block.view.status != "waiting" or block.view.thread is not None:
            continue
        if wait.op.number is not None and not wait.any_of:
            key = wait.op.group, wait.op.number
            waiting.setdefault(key, []).extend(block.ranks)
            first.setdefault(key, wait)
    found = {}
    for key, ranks in waiting.items():
        slot = OpenSlot(first[key].op, tuple(sorted(ranks)), tuple(sorted(first[key].needs)))
        found.update(dict.fromkeys(ranks, slot))
    return found


class _Absentees:
    """One look at what the ranks did."""

    def __init__(self, journal: Journal, records: Records) -> None:
        self._journal = journal
        self._records = records
        self._sites = Sites()

    def absence(self, slot: OpenSlot, other: OpenSlot | None) -> Absence | None:
        """Those who are missing in a slot and wait in the other one, or have ended."""
        record = self._records.get(slot.op.group)
        absent = tuple(r for r in slot.absent if other is None or r in other.waiting)
        if record is None or not absent or not self._journal.has_all_calls():
            return None
        made = {sum(call.group is record for call in self._calls(rank)) for rank in absent}
        if len(made) != 1 or slot.op.number is None:
            return None
        instead = None if other is None else other.op
        past: tuple[Site, ...] = ()
        if instead is not None and slot.op.site is not None:
            file = self._file_of(slot)
            past = find_ways_past(slot.op.site, file, instead.site) if file else ()
        return Absence(
            slot.op.group, slot.op.number, slot.waiting, absent, made.pop(), instead, past
        )

    def has_changed(self, slot: OpenSlot, other: OpenSlot) -> bool:
        """Whether those who wait in `other` came there before, each time after the line of
        `slot`, and this time without it."""
        ranks = [rank for rank in other.waiting if rank in slot.absent]
        return bool(ranks) and all(self._has_left_out(rank, slot, other) for rank in ranks)

    def _has_left_out(self, rank: int, slot: OpenSlot, other: OpenSlot) -> bool:
        if slot.op.site is None or other.op.site is None:
            return False
        missing, here = key_of(slot.op.site), key_of(other.op.site)
        groups = {self._records.get(slot.op.group), self._records.get(other.op.group)}
        lines = [self._sites.line_of(c.mark) for c in self._calls(rank) if c.group in groups]
        if len(lines) < 3 or lines[-1] != here:
            return False
        ends = [at for at, line in enumerate(lines) if line == here]
        ways = [lines[a + 1 : b] for a, b in pairwise((-1, *ends))]
        return (
            len(ways) > 1 and missing not in ways[-1] and all(missing in w for w in ways[:-1])
        )

    def tell_change(self, slot: OpenSlot, other: OpenSlot) -> str:
        ranks = [rank for rank in other.waiting if rank in slot.absent]
        return (
            f"until now {name_ranks(ranks)} came to {other.op.site} after "
            f"{slot.op.site}; this time without it"
        )

    def tell_passing(self, slot: OpenSlot, other: OpenSlot) -> str:
        ranks = [rank for rank in other.waiting if rank in slot.absent]
        where = f"{other.op.site} past {slot.op.site}"
        return f"{name_ranks(ranks)} came to {where}, without that call"

    def has_passed(self, slot: OpenSlot, other: OpenSlot) -> bool:
        """Whether who waits in `other` came past the line of `slot`, by the source. Nobody of
        them has been there before, and none uses that line for other groups: it may have done
        so by mistake."""
        first, then = slot.op.site, other.op.site
        file = self._file_of(slot)
        if first is None or then is None or not file or not comes_past(first, then, file):
            return False
        record, last = self._records.get(slot.op.group), self._records.get(other.op.group)
        missing, here = key_of(first), key_of(then)
        calls = [call for r in (*slot.waiting, *slot.absent) for call in self._calls(r)]
        lines = [(self._sites.line_of(call.mark), call) for call in calls]
        return all(
            (line != here or (call.group, call.number) == (last, other.op.number))
            and (line != missing or call.group is record)
            for line, call in lines
        )

    def _file_of(self, slot: OpenSlot) -> str | None:
        for call in reversed(self._calls(slot.op.rank)):
            self._sites.line_of(call.mark)
            if call.site == slot.op.site:
                return self._sites.file_of(call.site) if call.site else None
        return None

    def _calls(self, rank: int) -> Sequence[Posted]:
        return list(islice(reversed(self._journal.calls(rank)), MOST_CALLS))[::-1]
