"""Clocks: the time by which sleeps and timeouts are measured.

Used by the baton, which waits until a real clock reaches the next timer. A virtual clock jumps
to the next timer as soon as every rank waits, so a timeout of half an hour takes no time. While
one is in native code, so that nobody knows what it waits for, it goes as fast as a real one.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    jumps: bool

    def now(self) -> float: ...

    def jump_to(self, moment: float) -> None:
        """Called when every rank waits and `moment` is the next timer; only if `jumps`."""
        ...


class RealClock:
    jumps = False
    now = staticmethod(time.monotonic)

    def jump_to(self, moment: float) -> None:
        raise AssertionError("a real clock cannot be moved")


class VirtualClock:
    jumps = True

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def jump_to(self, moment: float) -> None:
        self._now = max(self._now, moment)
