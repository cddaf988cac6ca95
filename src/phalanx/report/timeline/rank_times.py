"""What each rank of a recorded run spent its time with, where operations had a cost: computing,
communicating meanwhile, communicating alone, waiting for others.

A rank waits for others until the last of them has come, and from then on for the operation
itself: that part is *exposed*. What goes on of an operation while its rank does something else
is overlapped. Everything else is computing. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phalanx.report.timeline.calls_table import NEVER, CallsTable, RankCalls

SECOND = 1e9
PARTS = ("computing", "overlapped", "exposed", "waiting")

Span = tuple[int, int]


@dataclass
class RankTime:
    """Seconds of a rank. `computing`, `exposed` and `waiting` add up to all of its `seconds`;
    `overlapped` is the part of `computing` in which it communicated, too."""

    ranks: list[int]
    seconds: float
    computing: float
    overlapped: float
    exposed: float
    waiting: float


def has_costs(table: CallsTable) -> bool:
    """Whether the times of operations are those of a network: else they say how busy this
    machine was."""
    return bool(table.recording.header.get("network"))


def rank_times(table: CallsTable) -> list[RankTime]:
    """One for each rank, in order."""
    ends = _ends(table)
    return [_time_of(calls, table.since, ends[calls.rank]) for calls in table.ranks]


def times_alike(times: Iterable[RankTime]) -> list[RankTime]:
    """Ranks that spent their time alike, to a percent, as one, with the numbers of the first;
    those that waited least first: the others waited for them."""
    found: dict[tuple[int, ...], RankTime] = {}
    for time in times:
        whole = time.seconds or 1.0
        key = tuple(round(100 * getattr(time, part) / whole) for part in PARTS)
        alike = found.setdefault(key, RankTime([], *_numbers(time)))
        alike.ranks += time.ranks
    return sorted(found.values(), key=lambda alike: (alike.waiting, alike.ranks))


def _numbers(time: RankTime) -> tuple[float, ...]:
    return (time.seconds, time.computing, time.overlapped, time.exposed, time.waiting)


def _ends(table: CallsTable) -> list[int]:
    ends = [table.duration] * len(table.ranks)
    for block in table.recording.of_kind("rank-ended"):
        ends[block.rank] = min(table.duration, int(block["time"][-1]))
    return ends


def _time_of(calls: RankCalls, since: int, until: int) -> RankTime:
    moving = _union(_spans(calls, "met", "done", since, until))
    blocked = _union(_own_waits(calls, since, until))
    exposed = _common(blocked, moving)
    total, idle = max(0, until - since), _length(blocked)
    parts = (total, total - idle, _length(moving) - exposed, exposed, idle - exposed)
    return RankTime([calls.rank], *(part / SECOND for part in parts))


def _spans(calls: RankCalls, first: str, last: str, since: int, until: int) -> Iterator[Span]:
    for begins, ends in zip(calls.columns[first], calls.columns[last], strict=True):
        if begins != NEVER:
            yield max(since, begins), until if ends == NEVER else min(ends, until)


def _own_waits(calls: RankCalls, since: int, until: int) -> Iterator[Span]:
    """Of the rank's own thread: others may wait beside it while it computes."""
    own = zip(calls.thread, _spans_or_none(calls, since, until), strict=True)
    return (span for thread, span in own if thread == 0 and span is not None)


def _spans_or_none(calls: RankCalls, since: int, until: int) -> Iterator[Span | None]:
    times = zip(calls.waiting, calls.resumed, calls.met, calls.done, strict=True)
    for waiting, resumed, met, done in times:
        if waiting == NEVER or (resumed == done == NEVER and met != NEVER):
            yield None
            continue
        ends = [each for each in (resumed, done) if each != NEVER]
        yield max(since, waiting), min(ends, default=until)


def _union(spans: Iterable[Span]) -> list[Span]:
    """In order, and without overlaps."""
    found: list[Span] = []
    for begins, ends in sorted(spans):
        if ends <= begins:
            continue
        if found and begins <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ends)
        else:
            found.append((begins, ends))
    return found


def _length(spans: Iterable[Span]) -> int:
    return sum(ends - begins for begins, ends in spans)


def _common(some: list[Span], others: list[Span]) -> int:
    """How long both last at the same time; each is a union."""
    total = one = other = 0
    while one < len(some) and other < len(others):
        begins = max(some[one][0], others[other][0])
        ends = min(some[one][1], others[other][1])
        total += max(0, ends - begins)
        if some[one][1] < others[other][1]:
            one += 1
        else:
            other += 1
    return total
