"""Clocks: the time by which sleeps and timeouts are measured.

Used by the baton, which waits until a real clock reaches the next timer. A virtual clock jumps
to the next timer as soon as every rank waits, so a timeout of half an hour takes no time. While
one is in native code, so that nobody knows what it waits for, it goes as fast as a real one.

`now` is what timers count by. `reading` is what whoever is told the time hears: on a virtual
clock it moves with `now`, and with the system's clock unless computing has a `rate`: then it
stands still while ranks compute, and each is charged with what it computed (`computing.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

_monotonic = time.monotonic
_CLOCKS = {"time": time.time, "monotonic": _monotonic, "perf_counter": time.perf_counter}
SAME_ORIGINS = {"time": 1_767_225_600.0, "monotonic": 100_000.0, "perf_counter": 100_000.0}
"""For runs that are to be equal: the first of January 2026, UTC."""


class Clock(Protocol):
    jumps: bool
    rate: float | None
    """How long it takes on this clock to compute for a second; None: as long as it takes, and
    while one rank computes the others grow older, too."""

    def now(self) -> float: ...

    def reading(self) -> float:
        """Seconds of the system's monotonic clock, and what was skipped. The journal's time."""
        ...

    def jump_to(self, moment: float) -> None:
        """Called when every rank waits and `moment` is the next timer; only if `jumps`."""
        ...


class RealClock:
    jumps = False
    rate: float | None = None
    now = reading = staticmethod(_monotonic)

    def jump_to(self, moment: float) -> None:
        raise AssertionError("a real clock cannot be moved")


class VirtualClock:
    jumps = True

    def __init__(
        self, rate: float | None = None, origins: Mapping[str, float] | None = None
    ) -> None:
        self.rate = rate
        self._began = _monotonic()
        self.origins = origins or {name: read() for name, read in _CLOCKS.items()}
        """What clocks of the system show when this one begins: if not said, what they do."""
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def reading(self) -> float:
        return self._now + (_monotonic() if self.rate is None else self._began)

    def jump_to(self, moment: float) -> None:
        self._now = max(self._now, moment)
