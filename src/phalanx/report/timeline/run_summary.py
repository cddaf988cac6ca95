"""What a recorded run came to, in numbers: ranks, groups, operations, messages, findings.

`summarize` makes it from the table of calls. `summary_screen.py` shows it on one screen,
`as_data` gives it to programs. A recording is not trusted: texts in here are texts, of any
length. Needs no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from phalanx.report.timeline.behaviour import fold_ranks
from phalanx.report.timeline.calls_table import NEVER, NONE, CallsTable, RankCalls, size_of
from phalanx.report.timeline.page_verdicts import page_verdicts, text

SENDS = frozenset({"send", "isend"})
MOST_FINDINGS = 1000
FACTS = ("program", "command", "engine", "backend", "seed", "profile", "python", "torch")
"""What is told of a recording's header."""
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
    in seconds; `open` counts calls that nobody met. `last` has the ranks for which the others
    waited, the one that came last most often first."""

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


@dataclass
class RankFold:
    """Ranks that made the same calls. `calls` and `bytes` are those of one of them; `waited`
    is the least and the most. `last` is the newest call, which is `open` if nobody met it."""

    ranks: list[int]
    calls: int
    bytes: int
    waited: tuple[float, float]
    ended: str
    last: str
    open: bool


@dataclass
class MessageCount:
    """Messages from a rank to another; `lost` were sent and not received, `missed` are receives
    that no message came for."""

    source: int
    target: int
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    missed: int = 0


@dataclass
class FindingLine:
    """What a check found, in one line."""

    severity: str
    kind: str
    ranks: list[int]
    headline: str


@dataclass
class RunSummary:
    """The whole of it. `status` is "finished", "failed" or "unknown", `text` the report."""

    facts: dict[str, str]
    ranks: int
    started: float | None
    seconds: float
    status: str
    error: str
    text: str
    folds: list[RankFold]
    groups: list[GroupUse]
    operations: list[OperationUse]
    messages: list[MessageCount]
    findings: list[FindingLine]
    missing: list[str]


def summarize(table: CallsTable) -> RunSummary:
    """The summary of a run. Takes some seconds for a million calls."""
    recording = table.recording
    header, end = recording.header, recording.end
    started = header.get("started")
    operations, groups = _Uses(table).counted()
    verdicts = page_verdicts(table)
    blamed = [rank for v in verdicts if v["severity"] == "error" for rank in v["ranks"]]
    return RunSummary(
        facts={name: text(header[name]) for name in FACTS if header.get(name)},
        ranks=recording.ranks,
        started=float(started) if isinstance(started, (int, float)) else None,
        seconds=table.duration / SECOND,
        status=text(end.get("status")) if end is not None else "unknown",
        error=text((end or {}).get("error")),
        text=str((end or {}).get("text") or ""),
        folds=_folds(table, blamed),
        groups=groups,
        operations=operations,
        messages=_messages(table),
        findings=_findings(table, verdicts),
        missing=missing(table),
    )


def as_data(summary: RunSummary) -> dict[str, Any]:
    """As JSON has it; `docs/timeline.md` lists the fields."""
    return asdict(summary)


def missing(table: CallsTable) -> list[str]:
    """What a recording does not hold, a sentence for each reason."""
    recording = table.recording
    found = []
    if recording.end is None:
        found.append("the recording has no end: the run was killed, or still goes on")
    if recording.dropped:
        found.append(f"{recording.dropped:,} events: ranks outran the recorder")
    if earlier := sum(calls.first for calls in table.ranks):
        found.append(f"the {earlier:,} oldest calls: only the newest were kept")
    return found


# -- operations and groups ------------------------------------------------------------------


class _Uses:
    """Counts calls by operation, line and group."""

    def __init__(self, table: CallsTable) -> None:
        self._table = table
        self._sizes = [sum(map(size_of, specs)) for specs in table.recording.tensors]
        self._sizes.append(0)  # for `NONE`, which is -1
        self._sends = {n for n, name in enumerate(table.ops) if name in SENDS}
        self._uses: dict[tuple[int, int, int], OperationUse] = {}
        self._late: dict[tuple[int, int, int], dict[int, Late]] = {}
        self._first: dict[tuple[int, int], tuple[int, int]] = {}

    def counted(self) -> tuple[list[OperationUse], list[GroupUse]]:
        for calls in self._table.ranks:
            self._count(calls)
            self._arrive(calls)
        for calls in self._table.ranks:
            self._come_last(calls)
        groups = {
            number: GroupUse(group.title, list(group.ranks), group.backend)
            for number, group in self._table.recording.groups.items()
        }
        for key, use in self._uses.items():
            late = self._late.get(key, {}).values()
            use.last = sorted(late, key=lambda each: (-each.times, each.rank))
            group = groups[key[1]]
            group.calls += use.calls
            group.bytes += use.bytes
            group.waited += use.waited
        uses = sorted(self._uses.values(), key=lambda use: (-use.waited, -use.calls))
        return uses, sorted(groups.values(), key=lambda group: (-group.waited, -group.calls))

    def _count(self, calls: RankCalls) -> None:
        sizes, uses, rank = self._sizes, self._uses, calls.rank
        keys = zip(calls.op, calls.group, calls.site, strict=True)
        waits = _waits(calls, self._table.duration)
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
        return OperationUse(self._table.ops[op], _line(self._table, site), title)

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
        key = (calls.op[place], calls.group[place], calls.site[place])
        ranks = self._late.setdefault(key, {})
        found = ranks.setdefault(calls.rank, Late(calls.rank))
        found.times += 1
        found.seconds += late / SECOND


def _slots(calls: RankCalls) -> Iterator[tuple[int, int]]:
    return zip(calls.group, calls.number, strict=True)


def _waits_at(calls: RankCalls, place: int, time: int) -> bool:
    since, until = calls.waiting[place], calls.resumed[place]
    return since != NEVER and since <= time and (until == NEVER or until >= time)


def _waits(calls: RankCalls, until: int) -> list[int]:
    """`RankCalls.waited` of all calls, in a fraction of the time."""
    times = zip(calls.waiting, calls.resumed, calls.met, calls.done, strict=True)
    return [
        0
        if since == NEVER or (resumed == NEVER and (met != NEVER or done != NEVER))
        else max(0, (until if resumed == NEVER else resumed) - since)
        for since, resumed, met, done in times
    ]


def _is_open(calls: RankCalls, place: int) -> bool:
    """Whether nobody has met it."""
    return calls.met[place] == NEVER and calls.done[place] == NEVER


def _line(table: CallsTable, site: int) -> str:
    return "" if site == NONE else str(table.recording.sites[site].site)


# -- ranks, messages, findings --------------------------------------------------------------


def _folds(table: CallsTable, blamed: list[int]) -> list[RankFold]:
    ends = _ends(table)
    waited = [sum(_waits(calls, table.duration)) / SECOND for calls in table.ranks]
    return [_fold(table, ranks, waited, ends) for ranks in fold_ranks(table, blamed)]


def _fold(
    table: CallsTable, ranks: list[int], waited: list[float], ends: dict[int, str]
) -> RankFold:
    calls = table.ranks[ranks[0]]
    last, still = "", False
    if len(calls):
        newest = len(calls) - 1
        line = _line(table, calls.site[newest])
        last = f"{table.ops[calls.op[newest]]} {line}".rstrip()
        still = _is_open(calls, newest)
    waits = [waited[rank] for rank in ranks]
    return RankFold(
        ranks=ranks,
        calls=calls.first + len(calls),
        bytes=sum(
            number * sum(map(size_of, table.recording.tensors[tensors]))
            for tensors, number in Counter(calls.tensors).items()
            if tensors != NONE
        ),
        waited=(min(waits), max(waits)),
        ended=", ".join(sorted({ends.get(rank, "unknown") for rank in ranks})),
        last=last,
        open=still,
    )


def _ends(table: CallsTable) -> dict[int, str]:
    found = {}
    for block in table.recording.of_kind("rank-ended"):
        how, error = text(block["how"][-1]), text(block["error"][-1])
        found[block.rank] = f"{how}: {error}" if error else how
    return found


def _messages(table: CallsTable) -> list[MessageCount]:
    pairs: dict[tuple[int, int], MessageCount] = {}
    sends = {n for n, name in enumerate(table.ops) if name in SENDS}
    for calls in table.ranks:
        for place, number in enumerate(calls.number):
            peer = calls.peer[place]
            if number != NONE or peer == NONE:
                continue
            is_send = calls.op[place] in sends
            pair = (calls.rank, peer) if is_send else (peer, calls.rank)
            if is_send or calls.met[place] == NEVER:
                count = pairs.setdefault(pair, MessageCount(*pair))
                count.messages += is_send
                count.bytes += table.bytes_of(calls.rank, place) if is_send else 0
                count.lost += is_send and calls.met[place] == NEVER
                count.missed += not is_send
    return [pairs[pair] for pair in sorted(pairs)]


def _findings(table: CallsTable, verdicts: list[dict[str, Any]]) -> list[FindingLine]:
    """Those of the end of the run, and those of its course that no verdict repeats."""
    found = [FindingLine(v["severity"], v["kind"], v["ranks"], v["headline"]) for v in verdicts]
    told = Counter(line.kind for line in found)
    for block in table.recording.of_kind("finding-made"):
        for place in range(min(block.count, MOST_FINDINGS)):
            kind, severity = text(block["about"][place]), text(block["severity"][place])
            if told[kind]:
                told[kind] -= 1
                continue
            ranks = [r for r in block["ranks"][place] or () if isinstance(r, int)]
            found.append(FindingLine(severity, kind, ranks, ""))
    return found
