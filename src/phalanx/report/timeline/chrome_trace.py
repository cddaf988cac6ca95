"""A recorded run as a trace for Perfetto or chrome://tracing.

The format is that of Chrome's Trace Event documentation, as one JSON object: a process for
each rank, a thread for each of its threads. A call is a complete event (`X`) for the time its
thread is in it, with the part in which it waits for others inside; what an asynchronous call
does by itself is a pair of `b` and `e`. Flow events (`s`, `f`) lead from the send to its
receive, and from the rank that came last to the others; they end when the message, or the
last rank, came. Needs no torch.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, TextIO

from phalanx.errors import UsageError
from phalanx.report.timeline.calls_table import NEVER, NONE, CallsTable, RankCalls, size_of
from phalanx.report.timeline.operation_counts import waits_of
from phalanx.report.timeline.page_verdicts import text

SHORTEST = 1000
"""Nanoseconds of the bar of a call that returned at once."""

Flows = dict[tuple[int, int], list[tuple[int, int]]]
"""For a call, by rank and place: the flows that begin at it, each with its number and time."""
TraceEvent = tuple[float, float, str]
"""When it begins, how long it lasts with a minus, and the event as JSON: many are made of the
same texts, and a dict for each would take most of the time."""

_TIMES = ("start", "waiting", "met", "done", "resumed", "asynchronous", "op")
_FACTS = ("group", "site", "number", "peer", "tag", "root", "tensors", "partner")
_encode = json.JSONEncoder().encode
_when = itemgetter(0, 1)


def write_trace(table: CallsTable, path: str | os.PathLike[str]) -> None:
    """Write the trace to `path`. Raises `UsageError` if it cannot be written."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            _write(table, file)
    except OSError as error:
        raise UsageError(
            f"{os.fspath(path)}: {error.strerror or error}; name a file in a folder that "
            "exists and that you may write to"
        ) from None


def _write(table: CallsTable, file: TextIO) -> None:
    file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
    before = ""
    for events in _pieces(table):
        if events:
            file.write(before + ",\n".join(events))
            before = ",\n"
    file.write("\n]}\n")


def _pieces(table: CallsTable) -> Iterator[list[str]]:
    """All events as JSON: names first, then rank by rank, each in the order of time."""
    for calls in table.ranks:
        yield [_encode(event) for event in _names(table, calls)]
    flows, texts = _flows(table), _Texts(table)
    targets = {number: time for begun in flows.values() for number, time in begun}
    ended = {b.rank: int(b["time"][-1]) for b in table.recording.of_kind("rank-ended")}
    first = 0
    for calls in table.ranks:
        made = _TraceOfRank(table, calls, texts, flows, targets, first)
        events = [*made.events(ended.get(calls.rank, table.duration))]
        events += _moments(table, calls.rank)
        yield [event for _, _, event in sorted(events, key=_when)]
        first += len(calls)


def _names(table: CallsTable, calls: RankCalls) -> Iterator[dict[str, Any]]:
    rank = calls.rank
    yield _meta("process_name", rank, 0, name=f"rank {rank}")
    yield _meta("process_sort_index", rank, 0, sort_index=rank)
    for number in sorted({0, *calls.thread}):
        named = {0: "rank", 1: "callbacks"}.get(table.threads[number], f"thread {number}")
        yield _meta("thread_name", rank, number, name=named)
        yield _meta("thread_sort_index", rank, number, sort_index=number)


def _meta(kind: str, rank: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": args}


def _flows(table: CallsTable) -> Flows:
    """Flows by the call at which they begin. The number of a flow is that of the call to which
    it leads."""
    numbers = [0]
    for calls in table.ranks:
        numbers.append(numbers[-1] + len(calls))
    sends = {n for n, name in enumerate(table.ops) if "send" in str(name)}
    found: Flows = {}
    slots = _last_calls(table)
    for calls in table.ranks:
        rank, first, starts, peers, ops = calls.rank, numbers[calls.rank], *_sent(calls)
        rows = zip(calls.group, calls.number, calls.partner, calls.met, strict=True)
        for place, (group, number, partner, met) in enumerate(rows):
            if partner == NONE or met == NEVER:
                continue
            if number == NONE:
                if ops[place] in sends and peers[place] != NONE:
                    flow = (numbers[peers[place]] + partner, starts[place])
                    found.setdefault((rank, place), []).append(flow)
            elif partner != rank and (partner, group, number) in slots:
                there, start = slots[partner, group, number]
                found.setdefault((partner, there), []).append((first + place, start))
    return found


def _sent(calls: RankCalls) -> tuple[array[int], array[int], array[int]]:
    return calls.start, calls.peer, calls.op


def _last_calls(table: CallsTable) -> dict[tuple[int, int, int], tuple[int, int]]:
    """The place and the start of the calls that came last, by rank, group and slot."""
    slots = {}
    for calls in table.ranks:
        rank = calls.rank
        rows = zip(calls.group, calls.number, calls.partner, calls.start, strict=True)
        for place, (group, number, partner, start) in enumerate(rows):
            if number != NONE and partner == rank:
                slots[rank, group, number] = (place, start)
    return slots


class _Texts:
    """JSON that many events have, by the number that stands for it. What a call does not have
    is the last of its list, as `NONE` is -1."""

    def __init__(self, table: CallsTable) -> None:
        recording = table.recording
        self.ops = [_encode(name) for name in table.ops]
        self.waits = [_encode(f"wait for {name}") for name in table.ops]
        self.groups = {
            number: f'{{"group": {_encode(group.title)}'
            for number, group in recording.groups.items()
        }
        sites = [known.site for known in recording.sites]
        self.sites = [
            f', "line": {_encode(str(site))}, "function": {_encode(site.function)}'
            for site in sites
        ] + [""]
        self.tensors = [
            f', "tensors": {_encode(", ".join(map(str, specs)))}'
            f', "bytes": {sum(map(size_of, specs))}'
            for specs in recording.tensors
        ] + [""]


class _TraceOfRank:
    """The events of one rank; `targets` has the numbers of calls to which flows lead, and when
    these begin; `first` is the number of the rank's first call."""

    def __init__(
        self,
        table: CallsTable,
        calls: RankCalls,
        texts: _Texts,
        flows: Flows,
        targets: dict[int, int],
        first: int,
    ) -> None:
        self._calls, self._texts = calls, texts
        self._flows, self._targets, self._first = flows, targets, first
        self._until = table.duration
        self._waited = waits_of(calls, table.duration)
        self._times = list(zip(*(calls.columns[name] for name in _TIMES), strict=True))
        self._facts = list(zip(*(calls.columns[name] for name in _FACTS), strict=True))

    def events(self, until: int) -> Iterator[TraceEvent]:
        """`until` is when the rank ended."""
        calls, self._until = self._calls, until
        last: dict[int, int] = {}
        for place, (start, thread) in enumerate(zip(calls.start, calls.thread, strict=True)):
            if thread in last:
                yield from self._call(last[thread], thread, start)
            last[thread] = place
        for thread, place in last.items():
            yield from self._call(place, thread, self._until)

    def _call(self, place: int, thread: int, following: int) -> Iterator[TraceEvent]:
        """`following` is when its thread makes the next call: bars of one thread must not
        overlap."""
        start, _, met, done, resumed, later, op = self._times[place]
        end = resumed if resumed != NEVER else done if done != NEVER else met
        whole = max(start, self._until if end == NEVER else end)
        own = min(start + SHORTEST, following) if later else whole
        own = max(start, min(own, following))
        is_open = met == NEVER and done == NEVER
        args = self._args(place, is_open=is_open)
        yield self._bar(self._texts.ops[op], thread, start, own, kind="call", args=args)
        if later:
            yield from self._alone(place, thread, whole, following)
        elif self._waited[place]:
            waited = own if met == NEVER else min(max(met, start), own)
            yield self._bar('"waiting"', thread, start, waited, kind="waiting")
        yield from self._arrows(place, thread, start, own)

    def _alone(
        self, place: int, thread: int, whole: int, following: int
    ) -> Iterator[TraceEvent]:
        start, since, _, _, resumed, _, op = self._times[place]
        same = f'{{"name": {self._texts.ops[op]}, "cat": "asynchronous", '
        same += f'"pid": {self._calls.rank}, "tid": {thread}, "ph": '
        for phase, time in (("b", start / 1000), ("e", whole / 1000)):
            rest = f'"{phase}", "id": {self._first + place}, "ts": {time!r}}}'
            yield time, 0, same + rest
        if since != NEVER and start + SHORTEST <= since and since < following:
            until = min(following, self._until if resumed == NEVER else resumed)
            if until > since:
                yield self._bar(self._texts.waits[op], thread, since, until, kind="waiting")

    def _arrows(self, place: int, thread: int, start: int, end: int) -> Iterator[TraceEvent]:
        flows, number = self._flows.get((self._calls.rank, place), ()), self._first + place
        if not flows and number not in self._targets:
            return
        word = "message" if self._facts[place][2] == NONE else "came last"
        same = f'{{"pid": {self._calls.rank}, "tid": {thread}, "name": "{word}", "cat": "flow"'
        for flow, time in flows:
            yield time / 1000, 0, f'{same}, "id": {flow}, "ph": "s", "ts": {time / 1000!r}}}'
        if number in self._targets:
            _, since, met, _, resumed, later, _ = self._times[place]
            comes = max(start, met if later else min(met, end), self._targets[number])
            inside = comes <= end or (since != NEVER and since <= comes <= resumed)
            # What comes while the thread does something else leads to its next bar.
            bound = ', "bp": "e"' if inside else ""
            time = comes / 1000
            yield time, 0, f'{same}, "id": {number}, "ph": "f"{bound}, "ts": {time!r}}}'

    def _bar(
        self, name: str, thread: int, start: int, end: int, *, kind: str, args: str = ""
    ) -> TraceEvent:
        """`name` and `args` are JSON."""
        since, lasts = start / 1000, max(0, end - start) / 1000
        return (
            since,
            -lasts,
            f'{{"name": {name}, "cat": "{kind}", "ph": "X", "pid": {self._calls.rank}, '
            f'"tid": {thread}, "ts": {since!r}, "dur": {lasts!r}{args}}}',
        )

    def _args(self, place: int, *, is_open: bool) -> str:
        texts = self._texts
        group, site, number, peer, tag, root, tensors, partner = self._facts[place]
        made: str = f', "args": {texts.groups[group]}{texts.sites[site]}'
        if number != NONE:
            made += f', "number": {number}'
        if peer != NONE:
            made += f', "peer": {peer}'
        if tag != NONE:
            made += f', "tag": {tag}'
        if root != NONE:
            made += f', "root": {root}'
        made += texts.tensors[tensors]
        if is_open:
            return made + ', "open": "not all counterparts came"}'
        if number != NONE and partner != NONE:
            return f'{made}, "came last": {partner}}}'
        return made + "}"


_MOMENTS = {"finding-made": "about", "fault-struck": "shown", "rank-ended": "how"}
"""Kinds of events that are shown as moments, and the field that names each."""


def _moments(table: CallsTable, rank: int) -> Iterator[TraceEvent]:
    for block in table.recording.of_kind(*_MOMENTS):
        if block.rank == rank:
            names = block[_MOMENTS[block.kind]]
            for time, name in zip(block["time"], names, strict=True):
                same = {"cat": block.kind, "ph": "i", "s": "p", "pid": rank, "tid": 0}
                event = {"name": text(name), **same, "ts": time / 1000}
                yield time / 1000, 0, _encode(event)
