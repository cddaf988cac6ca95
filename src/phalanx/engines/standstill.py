"""Notice that ranks which are processes stand still: they neither start, print, call nor end.

Used by the processes engine and by the launcher of torchrun. A call that begins or ends is a
sign of life, whatever it is and whichever way it takes. A rank knows its own calls, so it is
asked. A rank that computes or polls makes no progress by this measure, as on threads. Must
never judge why ranks stand still.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from phalanx.backend.rank_errors import error_for
from phalanx.engines.remote.control_messages import HowFar, Progress
from phalanx.model import Stall
from phalanx.system import monotonic

LOOKS = 5
"""How often the ranks are asked within the time that they have."""
SLACK = 0.5
LAST_ANSWER = 1.0
"""Seconds that ranks have to answer before they are said to stand still."""


def stall_outside(seconds: float, awaited: str, replay: str | None) -> BaseException:
    """The error for a run that waits in vain for something that is no rank."""
    verdict = Stall(
        kind="stall",
        severity="error",
        ranks=(),
        seconds=round(seconds, 1),
        blocks=(),
        awaited=awaited,
    )
    return error_for(verdict, replay)


class Askable(Protocol):
    @property
    def rank(self) -> int: ...

    def send(self, message: Any) -> None: ...


class Standstill:
    """Since when nothing has moved."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._since = self._asked = monotonic()
        self._awaited: set[int] = set()

    def renew(self) -> None:
        self._since = monotonic()

    # -- asking ranks -----------------------------------------------------------------------

    def is_time_to_ask(self) -> bool:
        """Whether the ranks are to say how far they are; what they say comes a bit later."""
        now = monotonic()
        if self._limit is None or now - self._asked < self._limit / LOOKS:
            return False
        self._asked = now
        return True

    def ask(self, members: Iterable[Askable]) -> None:
        """A rank that has not answered yet is not asked again: its socket would fill up."""
        for member in members:
            if member.rank not in self._awaited:
                self._awaited.add(member.rank)
                member.send(HowFar())

    def hear(self, answer: Progress) -> bool:
        """Whether the rank has moved since anything is known to have."""
        self._awaited.discard(answer.rank)
        if answer.moved_at <= self._since:
            return False
        self._since = min(answer.moved_at, monotonic())
        return True

    def forget_ranks(self) -> None:
        """They have been started anew."""
        self._awaited.clear()

    def awaits(self, members: Iterable[Askable]) -> bool:
        """Whether one of these has still to answer."""
        return any(member.rank in self._awaited for member in members)

    # -- how long ---------------------------------------------------------------------------

    def idle(self) -> float:
        return monotonic() - self._since

    def seconds(self) -> float | None:
        """How long it has lasted, if that is longer than it may."""
        idle = self.idle()
        return None if self._limit is None or idle <= self._limit else idle

    def seconds_nearly(self) -> float | None:
        """How long it has lasted, if another machine may call it too long by now: ranks tell
        how far they are only now and then."""
        if self._limit is None:
            return None
        idle = self.idle()
        return idle if idle >= self._limit * (1 - 1 / LOOKS) - SLACK else None
