"""Notice that the ranks of this machine stand still: they neither print, end nor compute.

Used by `launcher.py` when the user gave a time for that. Must never judge why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

BUSY = 0.05
"""The part of a core that ranks use while they only wait: their threads look about."""


class Standstill:
    """Since when nothing has moved."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._since = self._looked = time.monotonic()
        self._work = 0

    def renew(self) -> None:
        self._since = time.monotonic()

    def seconds(self, pids: Iterable[int]) -> float | None:
        """How long it has lasted, if that is longer than it may."""
        now = time.monotonic()
        if self._limit is None:
            return None
        if now - self._looked > 1.0:
            work = sum(map(_cpu_ticks, pids))
            if abs(work - self._work) > BUSY * (now - self._looked) * os.sysconf("SC_CLK_TCK"):
                self._since = now
            self._work, self._looked = work, now
        return now - self._since if now - self._since > self._limit else None


def _cpu_ticks(pid: int) -> int:
    """What the process has computed so far. Unknown (not Linux): the wall clock, so that
    nothing is taken for standing still."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        if os.path.isdir("/proc/self"):  # it has ended
            return 0
        return int(time.monotonic() * os.sysconf("SC_CLK_TCK"))
    return int(fields[11]) + int(fields[12])
