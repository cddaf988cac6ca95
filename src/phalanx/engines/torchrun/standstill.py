"""Notice that the ranks of this machine stand still: they neither start, print, call nor end.

Used by `torchrun_launcher.py` when the user gave a time for that. A rank that computes or polls
makes no progress by this measure, as on the other engines. Must never judge why.
"""

from __future__ import annotations

from phalanx.system import monotonic

LOOKS = 5
"""How often the ranks are asked within the time that they have."""
SLACK = 0.5


class Standstill:
    """Since when nothing has moved."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._since = self._asked = monotonic()

    def renew(self) -> None:
        self._since = monotonic()

    def is_time_to_ask(self) -> bool:
        """Whether the ranks are to say how far they are; what they say comes a bit later."""
        now = monotonic()
        if self._limit is None or now - self._asked < self._limit / LOOKS:
            return False
        self._asked = now
        return True

    def seconds(self) -> float | None:
        """How long it has lasted, if that is longer than it may."""
        idle = monotonic() - self._since
        return None if self._limit is None or idle <= self._limit else idle

    def seconds_nearly(self) -> float | None:
        """How long it has lasted, if another machine may call it too long by now: ranks tell
        how far they are only now and then."""
        if self._limit is None:
            return None
        idle = monotonic() - self._since
        return idle if idle >= self._limit * (1 - 1 / LOOKS) - SLACK else None
