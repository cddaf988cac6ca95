"""When an asynchronous operation completes: the earliest legal moment, the latest, or by seed.

Used by the process group when the last member has come. Data may move at any moment from
then until somebody waits for it; a program that reads too early gets away with the earliest
and not with the latest. Only operations that every member called asynchronously from its own
lines are put off: torch's own (DDP, FSDP) gain nothing by it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from phalanx.backend.torch_private.private import no_function_modes
from phalanx.backend.work.call_origin import OWN
from phalanx.matching.slots import Call

if TYPE_CHECKING:
    from phalanx.backend.session import Session

MOMENTS = ("earliest", "latest", "seeded")
_PATIENCE = 3
"""How often `is_completed` is asked before an operation that is put off completes."""
_MOST_CALLS = 4


class PutOff:
    """An operation whose members are all there and whose data has not moved."""

    __slots__ = ("_move", "_session", "calls_left", "members", "polls_left")

    def __init__(
        self, session: Session, members: list[Call], move: Callable[[], None], calls: int | None
    ) -> None:
        self._session = session
        self._move: Callable[[], None] | None = move
        self.members = members
        self.calls_left = calls
        """After how many more calls of any rank it completes; None: not by itself."""
        self.polls_left = _PATIENCE

    def complete(self) -> None:
        move, self._move = self._move, None
        if move is None:
            return
        self._session.put_off.remove(self)
        for call in self.members:
            call.put_off = None
        with no_function_modes():
            move()

    def poll(self) -> None:
        self.polls_left -= 1
        if self.polls_left <= 0:
            self.complete()


def put_off(session: Session, members: list[Call], move: Callable[[], None]) -> bool:
    """Whether the operation is to complete later; then it is seen to."""
    for call in members:
        if call.origin != OWN or call.point is not None or call.waiters or call.callbacks:
            return False
    calls = None
    if session.completion == "seeded":
        drawn = _draw(session)
        if drawn % 3 == 0:
            return False
        calls = None if drawn % 3 == 1 else 1 + drawn // 3 % _MOST_CALLS
    later = PutOff(session, members, move, calls)
    session.put_off.append(later)
    for call in members:
        call.put_off = later
    return True


def _draw(session: Session) -> int:
    session.drawn += 1
    return zlib.crc32(f"{session.seed}.{session.drawn}".encode())


def complete_now(call: Call) -> None:
    """Somebody waits for it."""
    for each in (call, *call.parts):
        if each.put_off is not None:
            each.put_off.complete()


def count_call(session: Session) -> None:
    """A rank makes a call: what waited for that many completes."""
    for later in list(session.put_off):
        if later.calls_left is not None:
            later.calls_left -= 1
            if later.calls_left <= 0:
                later.complete()


def complete_all(session: Session, members_of: object = None) -> None:
    """The run ends, or a group (its mailbox) is destroyed."""
    for later in list(session.put_off):
        if members_of is None or later.members[0].mailbox is members_of:
            later.complete()
