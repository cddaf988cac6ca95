"""The recursion limit: each rank has its own number.

The interpreter has one limit for all threads, and a thread that wakes up deeper than it allows
crashes the process. So the limit is never lowered while ranks live: it is the highest number
that any rank has set, and `sys.getrecursionlimit` returns the calling rank's own. Used by
`switcher.py` (the beginning and the end of runs) and `run_patches.py`.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from phalanx.backend.session import RankContext
from phalanx.core.strand import here

Patch = tuple[Any, str, Any]
KEPT = "recursion limit"

_read, _write = sys.getrecursionlimit, sys.setrecursionlimit


class RecursionLimit:
    """The limit before one run."""

    def __init__(self) -> None:
        self._interpreters = _read()
        self.callers = sys.getrecursionlimit()
        """In a nested run: the limit of the surrounding rank."""

    def restore(self) -> None:
        if _read() != self._interpreters:
            _write(self._interpreters)


def begin(context: RankContext) -> None:
    """The rank may have set it in an earlier run of its world."""
    if KEPT in context.saved:
        _raise_to(context.saved[KEPT])


def _raise_to(number: int) -> None:
    if number > _read():
        _write(number)


def recursion_patches() -> list[Patch]:
    return [(sys, "setrecursionlimit", _set), (sys, "getrecursionlimit", _get)]


@wraps(_write)
def _set(limit: int, /) -> None:
    strand = here.strand
    if strand is None or not isinstance(limit, int) or limit < 1:
        _write(limit)  # which says what is wrong
        return
    depth = _depth()
    if limit <= depth:
        raise RecursionError(
            f"a recursion limit of {limit} is too low at a recursion depth of {depth}"
        )
    _raise_to(limit)
    strand.local.saved[KEPT] = limit


def _depth() -> int:
    """The depth of the caller's stack."""
    frame, depth = sys._getframe(2), 1
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


@wraps(_read)
def _get() -> int:
    strand = here.strand
    if strand is None:
        return _read()
    switcher: Any = strand.baton.switcher
    return int(strand.local.saved.get(KEPT, switcher.limit.callers))
