"""What the engine itself asks the system for, bound when it is loaded.

A program may replace the names in `time` and `os` for its own use, to freeze the time in a
test, say. In ranks that are threads that would be the engine's time as well.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

monotonic = time.monotonic
sleep = time.sleep
getpid = os.getpid
_getcwd = os.getcwd


def folder_here() -> str | None:
    """The current folder; None if somebody has removed it."""
    try:
        return _getcwd()
    except OSError:
        return None


# A test may replace the names.
_collects, _collect, _do_not_collect = gc.isenabled, gc.enable, gc.disable


def without_collection(function: Callable[[], T]) -> T:
    """What it returns, with no garbage collected meanwhile. No context manager, between whose
    steps a signal may raise."""
    collects = _collects()
    try:
        if collects:
            _do_not_collect()
        return function()
    finally:
        if collects:
            _collect()


_threshold, _set_threshold = gc.get_threshold, gc.set_threshold

RANKS_AT_ONCE = 16
"""For how many ranks Python's own settings of the garbage collector do."""


def collect_for(ranks: int) -> Callable[[], None]:
    """Let garbage be collected as often as each rank by itself gives reason to; returns the
    function that puts the settings back, unless somebody has changed them since.

    A rank that waits in a call holds a few objects. With a thousand of them these alone start
    seven collections in each collective, and every hundredth looks at all objects that there
    are: a fifth of the time.
    """
    young, *older = before = _threshold()
    scaled = (young * max(1, ranks // RANKS_AT_ONCE), *older)
    if scaled != before:
        _set_threshold(*scaled)

    def put_back() -> None:
        if _threshold() == scaled != before:
            _set_threshold(*before)

    return put_back


_frames = sys._current_frames
_get_ident = threading.get_ident
_looking = threading.RLock()  # a signal's handler may look while its thread does


def _look(ask: Callable[[], dict[int, T]]) -> dict[int, T]:
    """What it says of all threads, with the garbage collector off.

    Python 3.11 before 3.11.9 makes objects here while it holds a lock. A collection at that
    moment can run code of the program and switch to a thread that waits for the same lock: a
    deadlock of the whole process (gh-106883). For the same reason nothing here makes an object
    while our own lock is held, as the end of a `with` block would."""
    collects = False
    try:
        _looking.acquire()
        collects = _collects()
        if collects:
            _do_not_collect()
        return ask()
    finally:
        if collects:
            _collect()
        if _looking._is_owned():  # type: ignore[attr-defined]
            _looking.release()


def _frames_without_collection() -> dict[int, FrameType]:
    found = _look(_frames)
    found[_get_ident()] = sys._getframe(1)  # as if the caller had asked itself
    return found


if (3, 11) <= sys.version_info < (3, 11, 9):
    current_frames = _frames_without_collection
    if hasattr(os, "register_at_fork"):
        let = _looking.release  # no child begins while somebody looks
        os.register_at_fork(before=_looking.acquire, after_in_parent=let, after_in_child=let)
else:
    current_frames = _frames


_exceptions = sys._current_exceptions


def current_exceptions() -> dict[int, BaseException]:
    """The error that each thread is handling, of those that handle one."""
    found: dict[int, Any] = _look(_exceptions)
    values = {  # before Python 3.12 with its type and traceback
        ident: each[1] if isinstance(each, tuple) else each for ident, each in found.items()
    }
    return {ident: each for ident, each in values.items() if each is not None}
