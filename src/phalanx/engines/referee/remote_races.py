"""Receives from any source that could have had another message, from the journal.

Used by `end_of_run.py`. The referee hears of ranks in no particular order, so what happened
before what is found out at the end: the ranks' calls are gone through once more, each when
those that it needs have come. Whoever waits in the program waits here, and so do some who need
not; a program that cannot be gone through in this way is left alone. Deciding:
`checks/message_race.py`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from phalanx.checks.message_race import Arrival, Taken, find_rival, is_chosen, message_race
from phalanx.journal.events import CallId, GroupRecord, Met, Posted
from phalanx.journal.reader import Journal
from phalanx.matching.happens_before import Known, Ordering
from phalanx.model import Finding, Op


def find_message_races(journal: Journal) -> list[Finding]:
    """The first, if the journal is whole."""
    if not journal.has_all_calls():
        return []
    calls = [journal.calls(rank) for rank in range(journal.ranks)]
    if any(call.thread < 0 for own in calls for call in own):
        return []  # of which thread a call was is not known
    chosen = {c.call for own in calls for c in own if c.name == "recv" and c.peer is None}
    if not chosen:
        return []
    sources = {
        event.calls[-1]: event.source
        for event in journal.filter(kind="met")
        if isinstance(event, Met) and event.number is None
    }
    if not chosen <= sources.keys():
        return []  # one that took nothing
    again = _Again(calls, sources)
    return again.found[:1] if again.is_through() else []


@dataclass
class _Sent:
    """A message on its way, and what its sender knew."""

    rank: int
    op: Op
    known: Known
    delivered: bool = False


class _Again:
    """Where each rank is, going through its journal."""

    def __init__(self, calls: list[list[Posted]], sources: dict[CallId, int | None]) -> None:
        self._journals = calls
        self._sources = sources
        self._at = [0] * len(self._journals)
        self._order = Ordering(len(self._journals))
        self._met: dict[tuple[GroupRecord, int | None], list[int]] = defaultdict(list)
        self._sends: dict[Any, deque[_Sent]] = defaultdict(deque)
        self._waits: dict[int, _Sent] = {}
        self._taken: dict[Any, list[Taken]] = defaultdict(list)
        self._changed = True
        self.found: list[Finding] = []

    def is_through(self) -> bool:
        while self._changed:
            self._changed = False
            for rank in range(len(self._at)):
                self._go_on(rank)
        if any(at < len(self._journals[rank]) for rank, at in enumerate(self._at)):
            return False
        self.found += self._unreceived()
        return True

    def _go_on(self, rank: int) -> None:
        while self._at[rank] < len(self._journals[rank]):
            if not self._pass(rank, self._journals[rank][self._at[rank]]):
                return
            self._changed = True

    def _pass(self, rank: int, entry: Posted) -> bool:
        if entry.name == "send":
            return self._pass_send(rank, entry)
        if entry.name == "recv":
            return self._pass_receive(rank, entry)
        there = self._met[entry.group, entry.number]
        if rank not in there:
            there.append(rank)
        if len(there) < len(entry.group.ranks):
            return False
        self._order.meet(there)
        for each in there:
            self._at[each] += 1
        return True

    def _pass_send(self, rank: int, entry: Posted) -> bool:
        """One that blocks comes back when it has been received."""
        sent = self._waits.get(rank)
        if sent is None:
            sent = _Sent(rank, _op(entry), self._order.known_to(rank))
            self._changed = True
            self._sends[entry.group, entry.peer, entry.tag, entry.member].append(sent)
            if not entry.asynchronous:
                self._waits[rank] = sent
        if not entry.asynchronous and not sent.delivered:
            return False
        self._waits.pop(rank, None)
        self._at[rank] += 1
        return True

    def _pass_receive(self, rank: int, entry: Posted) -> bool:
        source = self._sources.get(entry.call) if entry.peer is None else entry.peer
        sends = self._sends[entry.group, entry.member, entry.tag, source]
        if not sends:
            return False
        sent = sends.popleft()
        sent.delivered = True
        before = self._order.known_to(rank)
        self._compare(rank, entry, sent)
        self._order.learn(rank, sent.known)
        if sent.rank in self._waits:
            self._order.learn(sent.rank, before)
        self._at[rank] += 1
        return True

    def _compare(self, rank: int, entry: Posted, sent: _Sent) -> None:
        posted = self._at[rank]
        taken = self._taken[entry.group, entry.member, entry.tag]
        any_source = entry.peer is None
        layout = [(spec.dtype, spec.shape) for spec in entry.tensors]
        if taken:
            arrival = Arrival(sent.rank, sent.known, posted, any_source, layout)
            rival = find_rival(taken, arrival)
            if rival is not None and not is_chosen(rival.op, _op(entry)):
                self.found.append(message_race(rival, sent.op, _op(entry)))
        if any_source:
            number = self._order.event(rank)
            taken.append(Taken(_op(entry), sent.rank, number, posted, layout))

    def _unreceived(self) -> Iterator[Finding]:
        for (place, member, tag, _), sends in self._sends.items():
            for sent in sends:
                arrival = Arrival(sent.rank, sent.known)
                rival = find_rival(self._taken[place, member, tag], arrival)
                if rival is not None:
                    yield message_race(rival, sent.op, None)


def _op(entry: Posted) -> Op:
    return entry.as_op(bare=False)
