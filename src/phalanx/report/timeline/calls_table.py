"""All calls of a recording, joined with what became of each: what every picture of it shows.

`calls_table` turns the events of a `Recording` into one `RankCalls` for each rank, in columns.
Used by the text, the page, the trace and the exports, so that all of them tell the same.
Needs no torch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

from phalanx.journal.events import REDUCE_OPS
from phalanx.journal.recording.decoder import EventBlock, Recording, RecordingError, Shared
from phalanx.model import TensorSpec

NEVER = -1
"""A time that has not come: the call is still open, or nobody waited for it."""
NONE = -1
"""Stands for a number that the call does not have: a slot, a peer, a tag, a line."""

COLUMNS = (
    "start",
    "waiting",
    "met",
    "done",
    "resumed",
    "thread",
    "op",
    "group",
    "number",
    "peer",
    "tag",
    "root",
    "reduce",
    "site",
    "tensors",
    "partner",
    "asynchronous",
    "failed",
)


_PROGRESS = ("start", "met", "done", "resumed")


@dataclass
class RankCalls:
    """The calls of one rank in the order in which it made them; all columns have the same
    length. Times are nanoseconds since the run began.

    * `start`: when it was made. `met`: when the last counterpart came. `done`: when the data
      had moved. `waiting`, `resumed`: when a thread began to wait for it and went on;
      a call that is not asynchronous waits from its start. What is still open when its rank
      ends is left then, which is `resumed`, too.
    * `op`, `thread` and `reduce` are places in `CallsTable.ops`, `threads` and `reduce_ops`;
      `group` is the number of a group, `site` and `tensors` places in the recording's tables.
      `number` is the slot.
    * `peer` and `root` are ranks of the world. `partner` is, for a message that was met, the
      place of the other call in its rank's columns; for a collective the rank that came last.
    """

    rank: int
    first: int = 0
    """The serial of the first call. Serials go on from run to run of a `World`."""
    forgotten: int = 0
    """Calls of this run before the first one."""
    run_ends: list[int] = field(default_factory=list)
    """When the rank's part in each run ended: a `World` may have several."""
    columns: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in COLUMNS}
    )

    def __len__(self) -> int:
        return len(self.columns["start"])

    def __getattr__(self, name: str) -> array[int]:
        try:
            return self.__dict__["columns"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def end(self, place: int) -> int:
        """When the call no longer concerned its rank: `NEVER` if it still does. An engine that
        does not see the data move knows only when the last counterpart came."""
        columns = self.columns
        for name in ("resumed", "done", "met"):
            if columns[name][place] != NEVER:
                return columns[name][place]
        return NEVER

    def waited(self, place: int, until: int) -> int:
        """Nanoseconds that a thread waited for it; if it still does, up to `until`. Whoever
        comes last waits for nobody."""
        columns = self.columns
        since = columns["waiting"][place]
        if since == NEVER:
            return 0
        resumed = columns["resumed"][place]
        if resumed == NEVER:
            return 0 if self.end(place) != NEVER else max(0, until - since)
        return max(0, resumed - since)


@dataclass
class CallsTable:
    """The calls of all ranks."""

    recording: Recording
    ranks: list[RankCalls]
    ops: list[str]
    """Names of operations."""
    threads: list[int]
    """Numbers of threads as the journal has them: 0 is a rank's own."""
    duration: int
    """When the last thing happened."""
    reduce_ops: list[str] = field(default_factory=list)
    """Names of reduce operations."""

    @property
    def since(self) -> int:
        """When the part that is kept begins: 0, unless earlier calls are not."""
        if not any(calls.forgotten for calls in self.ranks):
            return 0
        return max(0, min((calls.start[0] for calls in self.ranks if len(calls)), default=0))

    def bytes_of(self, rank: int, place: int) -> int:
        """The size of the call's tensors; 0 where it is not known."""
        number = self.ranks[rank].tensors[place]
        return 0 if number == NONE else sum(map(size_of, self.recording.tensors[number]))

    def __iter__(self) -> Iterator[tuple[RankCalls, int]]:
        """Every call: its rank's columns, and its place in them."""
        for calls in self.ranks:
            for place in range(len(calls)):
                yield calls, place


_SIZES = {"float64": 8, "double": 8, "int64": 8, "long": 8, "complex64": 8, "complex128": 16}
_SIZES |= {"float32": 4, "float": 4, "int32": 4, "int": 4, "uint32": 4, "uint64": 8}
_SIZES |= {"float16": 2, "half": 2, "bfloat16": 2, "int16": 2, "short": 2, "uint16": 2}


@lru_cache(maxsize=4096)
def size_of(spec: TensorSpec) -> int:
    """Bytes of a tensor."""
    return prod(spec.shape) * _SIZES.get(spec.dtype, 1)


def calls_table(recording: Recording) -> CallsTable:
    """Join the events of a recording. Takes some seconds for a million calls. Raises
    `RecordingError` if they do not fit together: a recording is not trusted."""
    try:
        made = CallsTable(
            recording,
            [RankCalls(rank) for rank in range(recording.ranks)],
            ops=[],
            threads=[0],
            duration=int(recording.duration),
        )
        _Join(made).join()
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RecordingError(
            f"the events of this recording do not fit together ({type(error).__name__}: "
            f"{str(error)[:80]}); was the file changed?"
        ) from None
    return made


class _Join:
    def __init__(self, table: CallsTable) -> None:
        self._table = table
        self._recording = table.recording
        self._ops: dict[str, int] = {}
        self._threads = {0: 0}
        self._reduce_ops: dict[str, int] = {}
        self._serials: list[array[int]] = [array("q") for _ in table.ranks]

    def join(self) -> None:
        recording = self._recording
        ordered = sorted(recording.of_kind("posted"), key=lambda block: block["serial"][0])
        for block in ordered:
            self._post(block)
        for calls, forgotten in zip(self._table.ranks, self._forgotten(), strict=True):
            calls.forgotten = forgotten
        self._table.ops = list(self._ops)
        self._table.threads = list(self._threads)
        self._table.reduce_ops = list(self._reduce_ops)
        met, done, failed = self._slots()
        for calls in self._table.ranks:
            self._enter_slots(calls, met, done, failed)
        for block in recording.of_kind("met", "completed"):
            self._messages(block)
        for block in recording.of_kind("wait-began", "wait-ended"):
            self._waits(block)
        self._close_runs()

    def _post(self, block: EventBlock) -> None:
        calls = self._table.ranks[block.rank]
        columns, count = calls.columns, block.count
        if not len(calls):
            calls.first = int(block["serial"][0])
        self._serials[block.rank].extend(block["serial"])
        columns["start"].extend(block["time"])
        ops, threads = self._ops, self._threads
        _extend(columns["op"], block["name"], lambda name: ops.setdefault(name, len(ops)))
        _extend(
            columns["thread"], block["thread"], lambda n: threads.setdefault(n, len(threads))
        )
        _extend(columns["reduce"], block["reduce_op"], self._reduce_op)
        _extend(columns["group"], block["group"], int)
        _extend(columns["asynchronous"], block["asynchronous"], int)
        for name in ("number", "tag", "site", "tensors"):
            _extend(columns[name], block[name], _or_none)
        for name in ("peer", "root"):
            pairs = _pairs(block["group"], block[name])
            _extend(columns[name], pairs, self._rank_at)
        if isinstance(later := block["asynchronous"], Shared) and not later.value:
            columns["waiting"].extend(block["time"])
        else:
            both = zip(later, block["time"], strict=True)
            columns["waiting"].extend([NEVER if each else time for each, time in both])
        for name in ("met", "done", "resumed", "partner"):
            columns[name].extend(array("q", [NEVER]) * count)
        columns["failed"].extend(array("q", [0]) * count)

    def _forgotten(self) -> list[int]:
        """Calls that each rank made in this run before the first that is recorded. A run that
        was kept does not say with which serials it began: if more calls are not there than
        events were forgotten, an earlier run of the same world made them."""
        recording, ranks = self._recording, self._table.ranks
        if recording.firsts is not None:
            both = zip(ranks, recording.firsts, strict=True)
            return [calls.first - first if len(calls) else 0 for calls, first in both]
        earlier = [calls.first for calls in ranks]
        if recording.from_rings and sum(earlier) > recording.dropped:
            return [0] * len(ranks)
        return earlier

    def _rank_at(self, pair: tuple[int, int | None]) -> int:
        group, place = pair
        return NONE if place is None else self._recording.groups[group].ranks[place]

    def _reduce_op(self, code: int | str | None) -> int:
        if code is None:
            return NONE
        known = isinstance(code, int) and 0 <= code < len(REDUCE_OPS)
        name = REDUCE_OPS[int(code)] if known else str(code)
        return self._reduce_ops.setdefault(name, len(self._reduce_ops))

    def _slots(self) -> tuple[dict[Any, tuple[int, int]], dict[Any, int], set[Any]]:
        met: dict[Any, tuple[int, int]] = {}
        done: dict[Any, int] = {}
        failed = set()
        for block in self._recording.of_kind("met", "completed"):
            keys = zip(block["group"], block["number"], strict=True)
            if block.kind == "met":
                rank = block.rank
                met |= {k: (t, rank) for k, t in zip(keys, block["time"], strict=True)}
            else:
                keys = list(keys)  # type: ignore[assignment]
                done |= zip(keys, block["time"], strict=True)
                failed |= {key for key, bad in zip(keys, block["failed"], strict=True) if bad}
        return met, done, failed

    def _enter_slots(
        self, calls: RankCalls, met: dict[Any, Any], done: dict[Any, int], failed: set[Any]
    ) -> None:
        columns = calls.columns
        nobody = (NEVER, NONE)
        keys = list(zip(columns["group"], columns["number"], strict=True))
        found = [met.get(key, nobody) for key in keys]
        columns["met"] = array("q", [time for time, _ in found])
        columns["partner"] = array("q", [rank for _, rank in found])
        columns["done"] = array("q", [done.get(key, NEVER) for key in keys])
        if failed:
            columns["failed"] = array("q", [key in failed for key in keys])

    def _messages(self, block: EventBlock) -> None:
        column = "met" if block.kind == "met" else "done"
        failures = block["failed"] if block.kind == "completed" else None
        for index, (time, pair) in enumerate(zip(block["time"], block["calls"], strict=True)):
            if not pair:
                continue
            found = [self._find(call) for call in pair]
            for (calls, place), other in zip(found, reversed(found), strict=True):
                if calls is None:
                    continue
                calls.columns[column][place] = time
                if len(pair) == 2 and other[0] is not None:
                    calls.columns["partner"][place] = other[1]
                if failures is not None and failures[index]:
                    calls.columns["failed"][place] = 1

    def _waits(self, block: EventBlock) -> None:
        """A thread waits for a call of its own rank; most of a recording are these events."""
        name = "waiting" if block.kind == "wait-began" else "resumed"
        own, serials = self._table.ranks[block.rank], self._serials[block.rank]
        column, first, count = own.columns[name], own.first, len(own)
        for time, call in zip(block["time"], block["call"], strict=True):
            if call is None:
                continue
            place = call[1] - first
            if 0 <= place < count and serials[place] == call[1] and call[0] == block.rank:
                column[place] = time
                continue
            calls, place = self._find(call)
            if calls is not None:
                calls.columns[name][place] = time

    def _close_runs(self) -> None:
        """What was still open when its rank's part in a run ended has not gone on since: a
        `World` may run again."""
        ranks = self._table.ranks
        for block in self._recording.of_kind("rank-ended"):
            ranks[block.rank].run_ends += block["time"]
        for calls in ranks:
            columns, times = calls.columns, calls.run_ends
            times.sort()
            rows = zip(*(columns[name] for name in _PROGRESS), strict=True)
            for place, (start, met, done, resumed) in enumerate(rows):
                if met == done == resumed == NEVER:
                    after = bisect_left(times, start)
                    if after < len(times):
                        columns["resumed"][place] = times[after]

    def _find(self, call: Any) -> tuple[RankCalls | None, int]:
        """Serials count up by one, unless the recorder lost some."""
        rank, serial = call
        serials = self._serials[rank]
        calls = self._table.ranks[rank]
        place = serial - calls.first
        if 0 <= place < len(serials) and serials[place] == serial:
            return calls, place
        place = bisect_left(serials, serial)
        found = place < len(serials) and serials[place] == serial
        return (calls, place) if found else (None, NONE)


def _extend(column: array[int], values: Sequence[Any], number: Callable[[Any], int]) -> None:
    """Append the number of each value; of few different ones, each is looked up once."""
    if isinstance(values, Shared):
        if len(values):
            column.extend(array("q", [number(values.value)]) * len(values))
        return
    known = {value: number(value) for value in dict.fromkeys(values)}
    column.extend([known[value] for value in values])


def _or_none(number: int | None) -> int:
    return NONE if number is None else number


def _pairs(groups: Sequence[Any], places: Sequence[Any]) -> Sequence[Any]:
    if isinstance(groups, Shared) and isinstance(places, Shared):
        return Shared((groups.value, places.value), len(places))
    return list(zip(groups, places, strict=True))
