"""Where a rank in a process of its own makes a call, and in what state: announced with it.

Used by the watcher for each call, so it stays cheap: it compares numbers and resolves no line
before a place is new.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import NamedTuple

from phalanx import callsite
from phalanx.backend.evidence.handled_errors import handling_now
from phalanx.callsite import Mark
from phalanx.model import Handling, StackLine

MOST_FRAMES = 64
"""A call from deeper inside has no callers: to look for them would take too long."""


class CallPlace(NamedTuple):
    """The line of the program, and the error that the rank is handling there. `key` is another
    one for each way to the line, as long as somebody has the code objects `codes`, those of the
    program's frames from the call outwards; `offsets` are their instructions."""

    mark: Mark | None
    key: tuple[object, ...]
    codes: tuple[CodeType, ...] = ()
    offsets: tuple[int, ...] = ()
    handling: Handling | None = None

    def stack(self) -> tuple[StackLine, ...]:
        """The lines through which the program came there, that of the call last."""
        return tuple(map(callsite.stack_line, self.codes, self.offsets))[::-1]


def place_here(depth: int) -> CallPlace:
    """That of the call that the frame so many above the caller's makes. In a thread of native
    code, where the main thread is."""
    mark = callsite.mark(depth + 1)
    if mark is None:
        place = callsite.mark_of_main_thread()
        return CallPlace(place, (place,))
    error = sys.exc_info()[1]
    handling = None if error is None else handling_now(depth + 1)
    codes, offsets = callsite.outer_places(sys._getframe(depth + 1), MOST_FRAMES)
    if not codes:
        return CallPlace(mark, (mark, handling), (), (), handling)
    return CallPlace(mark, (*map(id, codes), offsets, handling), codes, offsets, handling)
