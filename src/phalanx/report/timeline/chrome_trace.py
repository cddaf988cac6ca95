"""A recorded run as a trace for Perfetto or chrome://tracing.

The format is that of Chrome's Trace Event documentation, as one JSON object: a process for
each rank, a thread for each of its threads. A call is a complete event (`X`) for the time its
thread is in it, with the part in which it waits for others inside; what an asynchronous call
does by itself is a pair of `b` and `e`. Flow events (`s`, `f`) lead from the send to its
receive, and from the rank that came last to the others. Needs no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, TextIO

from phalanx.errors import UsageError
from phalanx.report.timeline.calls_table import NEVER, NONE, CallsTable, RankCalls
from phalanx.report.timeline.page_verdicts import text

SHORTEST = 1000
"""Nanoseconds of the bar of a call that returned at once."""

Flows = dict[tuple[int, int], list[tuple[int, int]]]
"""For a call, by rank and place: the flows that begin at it, each with its number and time."""


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
    for event in trace_events(table):
        file.write(before + json.dumps(event))
        before = ",\n"
    file.write("\n]}\n")


def trace_events(table: CallsTable) -> Iterator[dict[str, Any]]:
    """All events: names first, then rank by rank, each in the order of time."""
    for calls in table.ranks:
        yield from _names(table, calls)
    flows = _flows(table)
    targets = frozenset(number for begun in flows.values() for number, _ in begun)
    ended = {b.rank: int(b["time"][-1]) for b in table.recording.of_kind("rank-ended")}
    for calls in table.ranks:
        made = _TraceOfRank(table, calls, flows, targets)
        events = [*made.events(ended.get(calls.rank, table.duration))]
        events += _moments(table, calls.rank)
        yield from sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0)))


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
    found: Flows = {}
    slots: dict[tuple[int, int, int], int] = {}
    for calls in table.ranks:
        for place, (group, number) in enumerate(zip(calls.group, calls.number, strict=True)):
            if number != NONE and calls.partner[place] == calls.rank:
                slots[calls.rank, group, number] = place
    for calls in table.ranks:
        for place, (group, number) in enumerate(zip(calls.group, calls.number, strict=True)):
            partner = calls.partner[place]
            if partner == NONE or calls.met[place] == NEVER:
                continue
            if number == NONE:
                if "send" in table.ops[calls.op[place]] and calls.peer[place] != NONE:
                    peer = calls.peer[place]
                    flow = (numbers[peer] + partner, calls.start[place])
                    found.setdefault((calls.rank, place), []).append(flow)
            elif partner != calls.rank and (partner, group, number) in slots:
                key = (partner, slots[partner, group, number])
                flow = (numbers[calls.rank] + place, table.ranks[partner].start[key[1]])
                found.setdefault(key, []).append(flow)
    return found


class _TraceOfRank:
    """The events of one rank; `targets` are the numbers of calls to which flows lead."""

    def __init__(
        self, table: CallsTable, calls: RankCalls, flows: Flows, targets: frozenset[int]
    ) -> None:
        self._table, self._calls = table, calls
        self._flows, self._targets = flows, targets
        self._first = sum(len(each) for each in table.ranks[: calls.rank])
        self._until = table.duration

    def events(self, until: int) -> Iterator[dict[str, Any]]:
        """`until` is when the rank ended."""
        calls, self._until = self._calls, until
        last: dict[int, int] = {}
        for place, (start, thread) in enumerate(zip(calls.start, calls.thread, strict=True)):
            if thread in last:
                yield from self._call(last[thread], start)
            last[thread] = place
        for place in last.values():
            yield from self._call(place, self._until)

    def _call(self, place: int, following: int) -> Iterator[dict[str, Any]]:
        """`following` is when its thread makes the next call: bars of one thread must not
        overlap."""
        calls, table = self._calls, self._table
        start, thread = calls.start[place], calls.thread[place]
        name = table.ops[calls.op[place]]
        end = calls.end(place)
        whole = max(start, self._until if end == NEVER else end)
        own = min(start + SHORTEST, following) if calls.asynchronous[place] else whole
        own = max(start, min(own, following))
        args = self._args(place)
        yield self._bar(name, thread, start, own, kind="call", args=args)
        if calls.asynchronous[place]:
            yield from self._alone(place, name, start, whole, following)
        elif calls.waited(place, table.duration):
            met = calls.met[place]
            waited = own if met == NEVER else min(max(met, start), own)
            yield self._bar("waiting", thread, start, waited, kind="waiting")
        yield from self._arrows(place, start, own)

    def _alone(
        self, place: int, name: str, start: int, whole: int, following: int
    ) -> Iterator[dict[str, Any]]:
        calls = self._calls
        thread, number = calls.thread[place], self._first + place
        same = {"name": name, "cat": "asynchronous", "pid": calls.rank, "tid": thread}
        yield {**same, "ph": "b", "id": number, "ts": start / 1000}
        yield {**same, "ph": "e", "id": number, "ts": whole / 1000}
        since, resumed = calls.waiting[place], calls.resumed[place]
        if since != NEVER and start + SHORTEST <= since and since < following:
            until = min(following, self._until if resumed == NEVER else resumed)
            if until > since:
                yield self._bar(f"wait for {name}", thread, since, until, kind="waiting")

    def _arrows(self, place: int, start: int, end: int) -> Iterator[dict[str, Any]]:
        calls = self._calls
        same = {"pid": calls.rank, "tid": calls.thread[place]}
        for number, time in self._flows.get((calls.rank, place), ()):
            flow = self._flow(place, number)
            yield {**same, **flow, "ph": "s", "ts": time / 1000}
        number = self._first + place
        if number in self._targets:
            met = max(start, min(calls.met[place], end))
            yield {**same, **self._flow(place, number), "ph": "f", "bp": "e", "ts": met / 1000}

    def _flow(self, place: int, number: int) -> dict[str, Any]:
        word = "message" if self._calls.number[place] == NONE else "came last"
        return {"name": word, "cat": "flow", "id": number}

    def _bar(
        self,
        name: str,
        thread: int,
        start: int,
        end: int,
        *,
        kind: str,
        args: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        event = {"name": name, "cat": kind, "ph": "X", "pid": self._calls.rank, "tid": thread}
        event |= {"ts": start / 1000, "dur": max(0, end - start) / 1000}
        return {**event, "args": args} if args else event

    def _args(self, place: int) -> dict[str, Any]:
        calls, table = self._calls, self._table
        recording = table.recording
        args: dict[str, Any] = {"group": recording.groups[calls.group[place]].title}
        if calls.site[place] != NONE:
            site = recording.sites[calls.site[place]].site
            args |= {"line": str(site), "function": site.function}
        for name in ("number", "peer", "tag", "root"):
            if calls.columns[name][place] != NONE:
                args[name] = calls.columns[name][place]
        if calls.tensors[place] != NONE:
            args["tensors"] = ", ".join(map(str, recording.tensors[calls.tensors[place]]))
            args["bytes"] = table.bytes_of(calls.rank, place)
        if calls.met[place] == NEVER and calls.done[place] == NEVER:
            args["open"] = "nobody met this call"
        elif calls.number[place] != NONE and calls.partner[place] != NONE:
            args["came last"] = calls.partner[place]
        return args


def _moments(table: CallsTable, rank: int) -> Iterator[dict[str, Any]]:
    for block in table.recording.of_kind("finding-made", "rank-ended"):
        if block.rank == rank:
            names = block["about"] if block.kind == "finding-made" else block["how"]
            for time, name in zip(block["time"], names, strict=True):
                same = {"cat": block.kind, "ph": "i", "s": "p", "pid": rank, "tid": 0}
                yield {"name": text(name), **same, "ts": time / 1000}
