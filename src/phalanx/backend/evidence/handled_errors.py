"""The error that a rank is handling while it makes a call: in an `except`, in a `finally` or in
the end of a `with`, which is where programs save checkpoints and leave their groups.

Used for ranks that are threads while they stand still, and in a rank that is a process when it
announces a call. `checks/error_handlers.py` decides what that means.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

from phalanx import callsite
from phalanx.backend.evidence.model_names import THREAD
from phalanx.backend.session import RankContext
from phalanx.errors import RankStopped, VerdictError, text_of
from phalanx.model import Handling
from phalanx.system import current_exceptions, current_frames

_MOST_CHAINED = 16
_LONGEST = 160


def find_handling(ranks: Sequence[RankContext]) -> dict[int, Handling]:
    """What the main threads of these ranks are handling, of those that handle an error."""
    errors = current_exceptions()
    found: dict[int, Handling] = {}
    frames: dict[int, FrameType] | None = None
    for context in ranks:
        ident = context.saved.get(THREAD, 0)
        if ident in errors:
            frames = frames or current_frames()
            handling = handling_of(errors[ident], frames.get(ident))
            if handling is not None:
                found[context.rank] = handling
    return found


def handling_now(depth: int) -> Handling | None:
    """What the calling thread is handling, where the frame so many above the caller's makes a
    call."""
    error = sys.exc_info()[1]
    return None if error is None else handling_of(error, sys._getframe(depth + 1))


def handling_of(error: BaseException | None, frame: FrameType | None) -> Handling | None:
    """The error that the program itself handles in a frame around `frame`: `error`, or one in
    whose handler that came up. What torch and Python handle by themselves is not its. Errors of
    ours are findings that have been told."""
    live: set[FrameType] | None = None
    for _ in range(_MOST_CHAINED):
        if error is None or isinstance(error, (RankStopped, VerdictError)):
            return None
        trace = error.__traceback__
        if trace is not None and not callsite.is_library(trace.tb_frame.f_code.co_filename):
            live = live if live is not None else _around(frame)
            site = callsite.raised_at(trace)
            if trace.tb_frame in live and site is not None:
                return Handling(_said(error), site, callsite.resolve(callsite.mark_of(frame)))
        error = error.__context__
    return None


def _around(frame: FrameType | None) -> set[FrameType]:
    return set(callsite.near_frames(frame, 4 * callsite.MOST_FRAMES))


def _said(error: BaseException) -> str:
    """Its class and the first line of what it says."""
    name = type(error).__name__
    lines = text_of(error).strip().splitlines()
    return f"{name}: {lines[0][:_LONGEST]}" if lines else name
