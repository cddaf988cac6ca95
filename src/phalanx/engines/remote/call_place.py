"""Where a rank in a process of its own makes a call, and in what state: announced with it.

Used by the watcher for each call, so it stays cheap: it resolves no line.
"""

from __future__ import annotations

from typing import NamedTuple

from phalanx import callsite
from phalanx.backend.evidence.handled_errors import handling_now
from phalanx.callsite import Mark
from phalanx.model import Handling


class CallPlace(NamedTuple):
    """The line of the program, and the error that the rank is handling there."""

    mark: Mark | None
    handling: Handling | None = None


def place_here(depth: int) -> CallPlace:
    """That of the call that the frame so many above the caller's makes. In a thread of native
    code, where the main thread is."""
    mark = callsite.mark(depth + 1)
    if mark is None:
        return CallPlace(callsite.mark_of_main_thread())
    return CallPlace(mark, handling_now(depth + 1))
