"""Waits with a timeout that pass on a virtual clock, besides those that ranks replace at all
times (`blocking.py`, `replaced_calls.py`): for a lock, a simple queue, or for nothing at all.

Modules of Python's own that have taken `time.monotonic` under a name of theirs count their
timeouts by it: they are given the clock of the run. In place only while a run has a virtual
clock; threads that belong to no rank wait as ever, and so do waits for other processes and for
connections, whose other end may take its time.
"""

from __future__ import annotations

import _queue
import _thread
import queue
import sched
import select
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from phalanx.core.strand import RUNNING, Strand, here
from phalanx.emulation.patch_installer import Patch
from phalanx.emulation.stdlib.blocking import Blocked, is_on_virtual_clock, wait_on_clock

LOCK, QUEUE, SELECT = "threading.Lock.acquire", "queue.SimpleQueue.get", "select.select"


def wait_patches(monotonic: Callable[[], float]) -> Iterator[Patch]:
    """`monotonic` is the clock that ranks read."""
    lock: Any = _thread.LockType
    yield lock, "acquire", _acquiring(lock.acquire, lock.locked)
    again: Any = _thread.RLock
    yield again, "acquire", _acquiring(again.acquire, _is_taken)
    yield _queue.SimpleQueue, "get", _getting(_queue.SimpleQueue.get)
    yield select, "select", _selecting_nothing(select.select)
    yield threading, "_time", monotonic
    yield queue, "time", monotonic
    yield sched.scheduler, "__init__", _scheduling(sched.scheduler.__init__)


def _is_taken(lock: Any) -> bool:
    """A lock that its owner may take again does not say so in another way."""
    return repr(lock).startswith("<locked")


def _strand_here(timeout: float | None) -> Strand | None:
    """If the calling thread waits for so long on a virtual clock. A rank's own thread that is
    outside of the baton is in a wait of ours already."""
    strand = here.strand
    if timeout is None or timeout <= 0 or not is_on_virtual_clock(strand):
        return None
    return strand if strand is not None and (strand.helper or strand.state is RUNNING) else None


def _acquiring(original: Any, is_taken: Callable[[Any], bool]) -> Any:
    def acquire(self: Any, blocking: bool = True, timeout: float = -1) -> bool:
        strand = _strand_here(timeout) if blocking else None
        if strand is None:
            return bool(original(self, blocking, timeout))
        try_it, waits = partial(original, self, False), partial(is_taken, self)
        return bool(_retry(strand, Blocked(LOCK), timeout, (try_it, waits)))

    return acquire


def _getting(original: Any) -> Any:
    def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
        strand = _strand_here(timeout) if block else None
        if strand is None or timeout is None:
            return original(self, block, timeout)
        found: list[Any] = []

        def try_it() -> bool:
            try:
                found.append(original(self, False))
            except queue.Empty:
                return False
            return True

        if not _retry(strand, Blocked(QUEUE), timeout, (try_it, self.empty)):
            raise queue.Empty
        return found[0]

    return get


def _retry(
    strand: Strand,
    why: Blocked,
    timeout: float,
    what: tuple[Callable[[], bool], Callable[[], bool]],
) -> bool:
    """Try until it succeeds or the time is over: somebody else may have been faster. `what` is
    the attempt, and whether it would fail."""
    attempt, waits = what
    until = strand.baton.clock.now() + timeout
    while not attempt():
        left = until - strand.baton.clock.now()
        if left <= 0:
            return False
        wait_on_clock(strand, why, left, waits)
    return True


def _selecting_nothing(original: Any) -> Any:
    """Programs sleep with it."""

    def wait(rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None, /) -> Any:
        strand = _strand_here(timeout)
        if strand is None or timeout is None or any(map(_has_any, (rlist, wlist, xlist))):
            return original(rlist, wlist, xlist, timeout)
        wait_on_clock(strand, Blocked(SELECT), timeout)
        return [], [], []

    return wait


def _has_any(given: Any) -> bool:
    """What cannot be counted is for the original to judge."""
    return not isinstance(given, (list, tuple, set, frozenset, dict)) or bool(given)


def _scheduling(original: Any) -> Any:
    """Its defaults are the clock and the sleep of when it was imported."""

    def construct(self: Any, timefunc: Any = None, delayfunc: Any = None) -> None:
        original(self, timefunc or time.monotonic, delayfunc or time.sleep)

    return construct
