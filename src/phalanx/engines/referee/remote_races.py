"""Receives from any source that could have had another message, from the referee's records.

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
from phalanx.engines.referee.call_records import Entry, Records
from phalanx.engines.remote.announced_calls import GroupMailbox
from phalanx.matching.happens_before import Known, Ordering
from phalanx.model import Finding, Op


def find_message_races(records: Records) -> list[Finding]:
    """The first, if the records are whole."""
    if not records.sources or records.threaded or not records.is_whole:
        return []
    if None in records.sources.values():
        return []  # one that took nothing
    again = _Again(records)
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

    def __init__(self, records: Records) -> None:
        self._journals = [list(journal) for journal in records.journals]
        self._sources = records.sources
        self._at = [0] * len(self._journals)
        self._order = Ordering(len(self._journals))
        self._met: dict[tuple[GroupMailbox, int | None], list[int]] = defaultdict(list)
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

    def _pass(self, rank: int, entry: Entry) -> bool:
        if entry.form.name == "send":
            return self._pass_send(rank, entry)
        if entry.form.name == "recv":
            return self._pass_receive(rank, entry)
        there = self._met[entry.place, entry.number]
        if rank not in there:
            there.append(rank)
        if len(there) < entry.place.size:
            return False
        self._order.meet(there)
        for each in there:
            self._at[each] += 1
        return True

    def _pass_send(self, rank: int, entry: Entry) -> bool:
        """One that blocks comes back when it has been received."""
        sent = self._waits.get(rank)
        if sent is None:
            sent = _Sent(rank, _op(entry), self._order.known_to(rank))
            self._changed = True
            form = entry.form
            self._sends[entry.place, form.peer, form.tag, entry.member].append(sent)
            if not entry.asynchronous:
                self._waits[rank] = sent
        if not entry.asynchronous and not sent.delivered:
            return False
        self._waits.pop(rank, None)
        self._at[rank] += 1
        return True

    def _pass_receive(self, rank: int, entry: Entry) -> bool:
        form, source = entry.form, entry.form.peer
        if source is None:
            source = self._sources.get((rank, entry.call_id))
        sends = self._sends[entry.place, entry.member, form.tag, source]
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

    def _compare(self, rank: int, entry: Entry, sent: _Sent) -> None:
        form, posted = entry.form, self._at[rank]
        taken = self._taken[entry.place, entry.member, form.tag]
        any_source = form.peer is None
        layout = [(spec.dtype, spec.shape) for spec in form.outputs]
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


def _op(entry: Entry) -> Op:
    return entry.place.op_of(entry.form, entry.member, entry.number)
