"""Calls of a recorded run by operation, line and group: how often, how long, who came last.

`UseCounter` counts them for `run_summary.py`. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from phalanx.report.timeline.calls_table import NEVER, NONE, CallsTable, RankCalls, size_of
from phalanx.report.timeline.message_counts import SENDS

SECOND = 1e9
"""Nanoseconds of the table in one second of a summary."""


@dataclass
class Late:
    """A rank that came last: how often, and how many seconds after the one before it."""

    rank: int
    times: int = 0
    seconds: float = 0.0


@dataclass
class OperationUse:
    """All calls of one operation from one line on one group. `waited` is the sum over ranks,
    in seconds; `open` counts calls that were never met. `last` has the ranks for
    which the others waited, the one that cost most time first."""

    operation: str
    site: str
    group: str
    ranks: list[int] = field(default_factory=list)
    calls: int = 0
    bytes: int = 0
    waited: float = 0.0
    longest: float = 0.0
    open: int = 0
    last: list[Late] = field(default_factory=list)


@dataclass
class GroupUse:
    """A group, and what ranks did on it."""

    name: str
    ranks: list[int]
    backend: str
    calls: int = 0
    bytes: int = 0
    waited: float = 0.0


class UseCounter:
    """Counts calls by operation, line and group."""

    def __init__(self, table: CallsTable) -> None:
        self._table = table
        self._sizes = [sum(map(size_of, specs)) for specs in table.recording.tensors]
        self._sizes.append(0)  # for `NONE`, which is -1
        self._sends = {n for n, name in enumerate(table.ops) if name in SENDS}
        self._same = same_groups(table)
        self._uses: dict[tuple[int, int, int], OperationUse] = {}
        self._late: dict[tuple[int, int, int], dict[int, Late]] = {}
        self._first: dict[tuple[int, int], tuple[int, int]] = {}

    def counted(self) -> tuple[list[OperationUse], list[GroupUse]]:
        for calls in self._table.ranks:
            self._count(calls)
        late = self.late_ranks()
        known = self._table.recording.groups
        groups = {
            number: GroupUse(
                known[number].title, list(known[number].ranks), known[number].backend
            )
            for number in self._same.values()
        }
        for key, use in self._uses.items():
            use.last = late.get(key, [])
            group = groups[key[1]]
            group.calls += use.calls
            group.bytes += use.bytes
            group.waited += use.waited
        uses = sorted(
            self._uses.values(), key=lambda use: (not use.open, -use.waited, -use.calls)
        )
        return uses, sorted(groups.values(), key=lambda group: (-group.waited, -group.calls))

    def late_ranks(self) -> dict[tuple[int, int, int], list[Late]]:
        """Who came last, by operation, group and line; quicker than all the rest."""
        for calls in self._table.ranks:
            self._arrive(calls)
        for calls in self._table.ranks:
            self._come_last(calls)
        return {key: _most_first(late) for key, late in self._late.items()}

    def _count(self, calls: RankCalls) -> None:
        sizes, uses, rank = self._sizes, self._uses, calls.rank
        groups = map(self._same.__getitem__, calls.group)
        keys = zip(calls.op, groups, calls.site, strict=True)
        waits = waits_of(calls, self._table.duration)
        rest = zip(waits, calls.tensors, calls.met, calls.done, strict=True)
        for key, (waited, tensors, met, done) in zip(keys, rest, strict=True):
            use = uses.get(key)
            if use is None:
                use = uses[key] = self._use(*key)
            if not use.ranks or use.ranks[-1] != rank:
                use.ranks.append(rank)
            use.calls += 1
            use.bytes += sizes[tensors]
            if waited:
                seconds = waited / SECOND
                use.waited += seconds
                if seconds > use.longest:
                    use.longest = seconds
            if met == NEVER and done == NEVER:
                use.open += 1

    def _use(self, op: int, group: int, site: int) -> OperationUse:
        title = self._table.recording.groups[group].title
        return OperationUse(self._table.ops[op], line_of(self._table, site), title)

    def _arrive(self, calls: RankCalls) -> None:
        """Note the two last times at which ranks came to a slot."""
        arrived = self._first
        never = (NEVER, NEVER)
        for key, start in zip(_slots(calls), calls.start, strict=True):
            if key[1] != NONE:
                last, before = arrived.get(key, never)
                if start > last:
                    arrived[key] = (start, last)
                elif start > before:
                    arrived[key] = (last, start)

    def _come_last(self, calls: RankCalls) -> None:
        rank, first = calls.rank, self._first
        met = zip(calls.met, calls.partner, calls.start, strict=True)
        for place, (key, (time, partner, start)) in enumerate(
            zip(_slots(calls), met, strict=True)
        ):
            if key[1] == NONE:
                self._sent_late(calls, place)
            elif partner == rank and time != NEVER:
                last, before = first[key]
                if before != NEVER and last == start:
                    self._note_late(calls, place, last - before)

    def _sent_late(self, calls: RankCalls, place: int) -> None:
        """Of a message, the side that the other one had to wait for. Both sides of a receive
        from any source are known to its sender."""
        if calls.op[place] not in self._sends:
            return
        peer, partner = calls.peer[place], calls.partner[place]
        if peer == NONE or partner == NONE:
            return
        there = self._table.ranks[peer]
        late = calls.start[place] - there.start[partner]
        if late > 0 and _waits_at(there, partner, calls.start[place]):
            self._note_late(calls, place, late)
        elif late < 0 and _waits_at(calls, place, there.start[partner]):
            self._note_late(there, partner, -late)

    def _note_late(self, calls: RankCalls, place: int, late: int) -> None:
        key = (calls.op[place], self._same[calls.group[place]], calls.site[place])
        ranks = self._late.setdefault(key, {})
        found = ranks.setdefault(calls.rank, Late(calls.rank))
        found.times += 1
        found.seconds += late / SECOND


def _most_first(late: dict[int, Late]) -> list[Late]:
    return sorted(late.values(), key=lambda each: (-each.seconds, each.rank))


def same_groups(table: CallsTable) -> dict[int, int]:
    """For each group the number of the first one that is like it: a world that goes on after a
    run that failed makes its groups again."""
    first: dict[Any, int] = {}
    return {
        number: first.setdefault((group.title, group.ranks, group.backend), number)
        for number, group in table.recording.groups.items()
    }


def _slots(calls: RankCalls) -> Iterator[tuple[int, int]]:
    return zip(calls.group, calls.number, strict=True)


def _waits_at(calls: RankCalls, place: int, time: int) -> bool:
    since, until = calls.waiting[place], calls.resumed[place]
    return since != NEVER and since <= time and (until == NEVER or until >= time)


def waits_of(calls: RankCalls, until: int) -> list[int]:
    """`RankCalls.waited` of all calls, in a fraction of the time."""
    times = zip(calls.waiting, calls.resumed, calls.met, calls.done, strict=True)
    return [
        0
        if since == NEVER or (resumed == NEVER and (met != NEVER or done != NEVER))
        else max(0, (until if resumed == NEVER else resumed) - since)
        for since, resumed, met, done in times
    ]


def is_open(calls: RankCalls, place: int) -> bool:
    """Whether not all counterparts have come."""
    return calls.met[place] == NEVER and calls.done[place] == NEVER


def line_of(table: CallsTable, site: int) -> str:
    return "" if site == NONE else str(table.recording.sites[site].site)
