"""The ranks for which the others waited, where that is worth a look: for screen and page.

One is named if the time that it cost is at least `LEAST_PART` of the run and `LEAST` seconds,
and twice what it would be if all ranks were equally late: ranks never come at the same moment,
and who is last by chance is no straggler. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.report.timeline.operation_counts import Late
from phalanx.report.timeline.screen_layout import time_text

LEAST_PART = 0.1
LEAST = 0.005
MOST = 3
"""Ranks that are named."""


def find_stragglers(lates: Iterable[Late], *, ranks: int, seconds: float) -> list[Late]:
    """Those that cost the others most, first. `lates` are of all operations, `seconds` what the
    run took."""
    total: dict[int, Late] = {}
    for each in lates:
        found = total.setdefault(each.rank, Late(each.rank))
        found.times += each.times
        found.seconds += each.seconds
    mean = sum(late.seconds for late in total.values()) / ranks
    least = max(LEAST, seconds * LEAST_PART, mean * 2)
    slow = sorted(total.values(), key=lambda late: -late.seconds)
    return [late for late in slow if late.seconds > least][:MOST]


def straggler_text(found: Iterable[Late]) -> str:
    """A line for all of them; empty if there is none.

    >>> straggler_text([Late(1, 8, 1.126)])
    'others waited for rank 1 for 1.13 s (8x)'
    """
    told = [f"rank {e.rank} for {time_text(e.seconds)} ({e.times}x)" for e in found]
    return f"others waited for {', '.join(told)}" if told else ""
