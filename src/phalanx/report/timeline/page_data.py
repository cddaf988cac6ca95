"""The data of the page: one compressed block of bytes, which the browser reads into arrays.

It is, packed with gzip: the length of a JSON object as four bytes, that object, then columns of
numbers, each at a multiple of eight bytes. The object says where each column begins and of
which type it is; `page_assets/run.js` reads it. In each column the calls of all ranks follow
each other. Needs no torch.
"""

from __future__ import annotations

import gzip
import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from phalanx.report.layout import visible
from phalanx.report.timeline.behaviour import fold_ranks
from phalanx.report.timeline.calls_table import NEVER, NONE, CallsTable, RankCalls, size_of
from phalanx.report.timeline.message_counts import MOST_PAIRS, count_messages, one_sided
from phalanx.report.timeline.operation_counts import SECOND, UseCounter, same_groups
from phalanx.report.timeline.page_verdicts import page_verdicts, text
from phalanx.report.timeline.rank_times import PARTS, has_costs, rank_times
from phalanx.report.timeline.stragglers import find_stragglers, straggler_text

MOST_CALLS = 3_000_000
"""In one page: a browser holds some tens of bytes for each."""
TICKS = (1 << 31) - 2
"""Times are counted in ticks of so many nanoseconds that they fit into 32 bits."""
LATER = ("waiting", "met", "done", "resumed")
"""Times after the start of a call; the page has each as a distance (`_Pack._distances`)."""
PLAIN = ("thread", "op", "group", "number", "tag", "root", "reduce", "site", "tensors")
MOST_LATE = 8
"""Ranks that came last, for each operation and line."""
FACTS = ("program", "command", "engine", "backend", "device", "python", "torch", "replay")
"""What the page shows of a recording's header."""
_TYPES = (("b", 1 << 7), ("h", 1 << 15), ("i", 1 << 31))


def page_data(table: CallsTable) -> bytes:
    """Everything that the page shows of a run."""
    return gzip.compress(_Pack(table).packed(), compresslevel=4, mtime=0)


def _visible(value: Any) -> Any:
    """Browsers show nothing for control characters, so text would read as what it is not."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {_visible(key): _visible(each) for key, each in value.items()}
    return [*map(_visible, value)] if isinstance(value, (list, tuple)) else value


class _Pack:
    def __init__(self, table: CallsTable) -> None:
        self._table = table
        self._unit = max(1, -(-table.duration // TICKS))
        most = max(1, MOST_CALLS // max(1, len(table.ranks)))
        self._cut = [max(0, len(calls) - most) for calls in table.ranks]
        self._counts = [
            len(calls) - cut for calls, cut in zip(table.ranks, self._cut, strict=True)
        ]
        self._offsets = [0]
        for count in self._counts:
            self._offsets.append(self._offsets[-1] + count)
        self._places: dict[str, dict[str, Any]] = {}
        self._bytes: list[bytes] = []
        self._length = 0

    def packed(self) -> bytes:
        ranks = self._table.ranks
        self._add("start", self._joined(_steps(self._ticks(c, "start")) for c in ranks))
        distances = zip(*map(self._distances, ranks), strict=True)
        for name, columns in zip(LATER, distances, strict=True):
            self._add(name, self._joined(columns))
        for name in PLAIN:
            self._add(name, self._joined(self._kept(calls, name) for calls in ranks))
        for name in ("asynchronous", "failed"):
            self._add(name, self._joined(self._kept(calls, name) for calls in ranks))
        peer, partner = self._counterparts()
        self._add("peer", peer)
        self._add("partner", partner)
        self._add("count", self._counts)
        self._add("first", [c.first + cut for c, cut in zip(ranks, self._cut, strict=True)])
        self._add_ends()
        facts = _visible({**self._facts(), "columns": self._places})
        meta = json.dumps(facts, allow_nan=False).encode()
        head = len(meta).to_bytes(4, "little") + meta
        return b"".join([head, bytes(-len(head) % 8), *self._bytes])

    # -- columns ---------------------------------------------------------------------------

    def _kept(self, calls: RankCalls, name: str) -> array[int]:
        column = calls.columns[name]
        cut = self._cut[calls.rank]
        return column[cut:] if cut else column

    def _ticks(self, calls: RankCalls, name: str) -> array[int]:
        unit, column = self._unit, self._kept(calls, name)
        if unit == 1:
            return column
        return array("q", [NEVER if time == NEVER else time // unit for time in column])

    def _distances(self, calls: RankCalls) -> Iterator[array[int]]:
        """For each of `LATER` how long after the time before it: small numbers, which compress
        well. 0 says never, so that a distance of 0 and more has 1 added."""
        before = self._ticks(calls, "start")
        since_start = before
        for name in LATER:
            times = self._ticks(calls, name)
            distances = [
                0 if time == NEVER else time - base + 1 if time >= base else time - base
                for base, time in zip(before, times, strict=True)
            ]
            yield array("q", distances)
            if name == "waiting":
                before = since_start
            elif NEVER in times:
                known = zip(before, times, strict=True)
                before = array("q", (base if time == NEVER else time for base, time in known))
            else:
                before = times

    @staticmethod
    def _joined(columns: Iterable[array[int]]) -> array[int]:
        joined = array("q")
        for column in columns:
            joined.extend(column)
        return joined

    def _counterparts(self) -> tuple[array[int], array[int]]:
        """`peer`, now also of a receive from any source; and `partner`: for a message the place
        of the other call among all calls, for a collective the rank that came last."""
        ranks = self._table.ranks
        peers = self._joined(self._kept(calls, "peer") for calls in ranks)
        partners = self._joined(self._kept(calls, "partner") for calls in ranks)
        for calls in ranks:
            numbers = self._kept(calls, "number")
            if NONE not in numbers:
                continue
            offset = self._offsets[calls.rank]
            found = self._kept(calls, "partner")
            for place, peer in enumerate(self._kept(calls, "peer")):
                if numbers[place] != NONE or found[place] == NONE:
                    continue
                if not 0 <= peer < len(ranks):
                    continue
                other = found[place] - self._cut[peer]
                if 0 <= other < self._counts[peer]:
                    other += self._offsets[peer]
                    partners[offset + place] = other
                    partners[other] = offset + place
                    peers[other] = calls.rank
                else:
                    partners[offset + place] = NONE
        return peers, partners

    def _add(self, name: str, column: Sequence[int]) -> None:
        least, most = min(column, default=0), max(column, default=0)
        if least == most:
            self._places[name] = {"all": least, "n": len(column)}
            return
        kind = next((k for k, size in _TYPES if -size <= least and most < size), "d")
        values: array[Any] = array(kind, column)
        if sys.byteorder == "big":
            values.byteswap()
        data = values.tobytes()
        self._places[name] = {"type": kind, "at": self._length, "n": len(column)}
        data += bytes(-len(data) % 8)
        self._bytes.append(data)
        self._length += len(data)

    def _moment(self, time: object) -> int:
        whole = time if isinstance(time, int) else NEVER
        return min(max(whole, NEVER), self._table.duration) // self._unit

    def _add_ends(self) -> None:
        ends = [NEVER] * len(self._table.ranks)
        how = [0] * len(ends)
        ways = ["", "finished", "failed", "stopped"]
        for block in self._table.recording.of_kind("rank-ended"):
            ends[block.rank] = self._moment(block["time"][-1])
            way = block["how"][-1]
            how[block.rank] = ways.index(way) if way in ways else 0
        self._add("ended", ends)
        self._add("how", how)

    # -- words -----------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        table, recording = self._table, self._table.recording
        end = recording.end or {}
        verdicts = page_verdicts(table)
        for verdict in verdicts:
            for block in verdict["blocks"]:
                block["calls"] = [
                    self._offsets[rank] + place - self._cut[rank]
                    for rank, place in block["calls"]
                    if place >= self._cut[rank]
                ]
        blamed = [rank for v in verdicts if v["severity"] == "error" for rank in v["ranks"]]
        header, same = recording.header, same_groups(table)
        return {
            "ranks": len(table.ranks),
            "unit": self._unit,
            "duration": table.duration // self._unit,
            "facts": {name: text(header[name]) for name in FACTS if header.get(name)},
            "started": _number(header.get("started")),
            "status": text(end.get("status")) if recording.end is not None else "unknown",
            "error": text(end.get("error")) + _which_run(end),
            "text": str(end.get("text") or "")[:200_000],
            "verdicts": verdicts,
            "findings": self._findings(),
            "faults": self._faults(),
            "folds": fold_ranks(table, blamed),
            "ops": [text(name) for name in table.ops],
            "threads": [n if isinstance(n, int) else NONE for n in table.threads],
            "reduceOps": table.reduce_ops,
            "groups": {
                str(number): {
                    "name": g.title,
                    "ranks": g.ranks,
                    "backend": g.backend,
                    "same": same[number],
                }
                for number, g in recording.groups.items()
            },
            **self._late(),
            "sites": [
                [s.site.file, s.site.line, s.site.function, s.first, s.around]
                for s in recording.sites
            ],
            "tensors": [
                {"specs": [f"{s} {s.device}" for s in specs], "bytes": sum(map(size_of, specs))}
                for specs in recording.tensors
            ],
            "times": self._times(),
            "oneSided": one_sided(count_messages(table), MOST_PAIRS),
            "notes": self._notes(),
        }

    def _times(self) -> list[list[int]]:
        """Of each rank the parts of its time, in ticks; none where operations had no cost."""
        times = rank_times(self._table) if has_costs(self._table) else []
        ticks = SECOND / self._unit
        return [[round(getattr(time, part) * ticks) for part in PARTS] for time in times]

    def _late(self) -> dict[str, Any]:
        """Who came last: by operation, group and line, and of the whole run."""
        table, found = self._table, UseCounter(self._table).late_ranks()
        seconds = (table.duration - table.since) / SECOND
        lates = [late for each in found.values() for late in each]
        slow = find_stragglers(lates, ranks=len(table.ranks), seconds=seconds)
        ticks = SECOND / self._unit
        return {
            "late": [
                [
                    *key,
                    len(each),
                    *((e.rank, e.times, e.seconds * ticks) for e in each[:MOST_LATE]),
                ]
                for key, each in found.items()
            ],
            "stragglers": straggler_text(slow),
        }

    def _findings(self) -> list[dict[str, Any]]:
        return [
            {
                "time": self._moment(block["time"][place]),
                "rank": block.rank,
                "about": text(block["about"][place]),
                "severity": text(block["severity"][place]),
            }
            for block in self._table.recording.of_kind("finding-made")
            for place in range(min(block.count, 1000))
        ]

    def _faults(self) -> list[dict[str, Any]]:
        return [
            {
                "time": self._moment(block["time"][place]),
                "rank": block.rank,
                "what": text(block["shown"][place]),
                "how": text(block["how"][place]),
            }
            for block in self._table.recording.of_kind("fault-struck")
            for place in range(min(block.count, 1000))
        ]

    def _notes(self) -> list[str]:
        recording = self._table.recording
        notes = []
        if recording.end is None:
            notes.append("The recording has no end: the run was killed, or still goes on.")
        if recording.dropped and not recording.from_rings:
            notes.append(
                f"{recording.dropped:,} events are missing: ranks outran the recorder."
            )
        if cut := sum(self._cut):
            notes.append(f"The oldest {cut:,} calls are left out: the page would be too large.")
        if earlier := sum(calls.forgotten for calls in self._table.ranks):
            notes.append(f"{earlier:,} earlier calls had been forgotten when this was written.")
        elif recording.dropped and recording.from_rings:
            gone = f"{recording.dropped:,} earlier events"
            notes.append(f"{gone} had been forgotten when this was written.")
        return notes


def _steps(column: array[int]) -> array[int]:
    """The first value, then differences: small numbers, which compress well."""
    steps = array("q", column[:1])
    steps.extend(map(int.__sub__, column[1:], column))
    return steps


def _which_run(end: dict[str, Any]) -> str:
    """Of a `World` with several runs, the one that failed."""
    run, runs = end.get("run"), end.get("runs")
    return f" (run {run} of {runs})" if isinstance(run, int) and isinstance(runs, int) else ""


def _number(given: object) -> float | None:
    usable = isinstance(given, (int, float)) and abs(given) < 1e12
    return float(given) if usable else None  # type: ignore[arg-type]
