"""Python's own waits: for a condition (events, queues, futures) and for the end of a thread.

A rank that waits so steps out of the baton and leaves a note of what it waits for, by which
`partial_deadlock.py` decides whether it can ever come. Threads that ranks started leave the
note as well; threads that belong to no rank get the originals. Installed by
`replaced_calls.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import thread as pools
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from phalanx import callsite
from phalanx.core.strand import OUTSIDE, RUNNING, Strand, here

CONDITION = "threading.Condition.wait"
JOIN = "threading.Thread.join"

_pool_worker: CodeType = pools._worker.__code__


def main_strand() -> Strand | None:
    """The calling thread's strand if it is a rank's main thread and holds the baton."""
    strand = here.strand
    if strand is None or strand.helper or strand.state is not RUNNING:
        return None
    return strand


def wait_sliced(
    strand: Strand, attempt: Callable[[float], bool], timeout: float | None = None
) -> bool:
    """Call `attempt(seconds)` outside of the baton until it succeeds or the time is over.
    Raises when the run stops."""
    if strand.state is RUNNING:
        return strand.baton.wait_outside(strand, attempt, timeout)
    return strand.baton.in_slices(strand, attempt, timeout)


class Blocked:
    """Why a rank is outside, as the report shows it. `thread` is the one that it joins;
    `is_waiting` says whether it still waits for a condition. Both only without a timeout."""

    __slots__ = ("is_waiting", "mark", "thread", "what")

    def __init__(
        self,
        what: str,
        *,
        thread: threading.Thread | None = None,
        is_waiting: Callable[[], bool] | None = None,
    ) -> None:
        self.what = what
        self.mark = callsite.mark(2)
        self.thread = thread
        self.is_waiting = is_waiting


class _Starting(threading.local):
    now = False


starting = _Starting()
"""Whether the calling thread waits for a thread it started to be there: too short a time to
let other ranks run."""


def waiting(original: Any) -> Any:
    """Replaces `Condition.wait`, with which Python's queues and events wait: other ranks run
    meanwhile. Written anew, because no slice of the original may miss a `notify`."""

    def wait(self: Any, timeout: float | None = None) -> bool:
        strand = _waiting_strand(timeout)
        if strand is None or starting.now or not self._is_owned():
            return bool(original(self, timeout))
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        # `notify` removes the lock from the list, which shows before this thread wakes up.
        is_waiting = (lambda: waiter in self._waiters) if timeout is None else None
        strand.why = Blocked(CONDITION, is_waiting=is_waiting)
        lock_state = self._release_save()
        notified = False
        try:
            if strand.helper:
                notified = waiter.acquire()
            else:
                notified = strand.baton.wait_outside(
                    strand, lambda seconds: waiter.acquire(True, seconds), timeout
                )
        finally:
            strand.why = None
            self._acquire_restore(lock_state)
            if not notified:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
        return notified

    return wait


def joining(original: Any) -> Any:
    """A rank that waits for one of its threads lets the others run meanwhile."""

    def join(self: threading.Thread, timeout: float | None = None) -> None:
        strand = _waiting_strand(timeout)
        if strand is None or self is threading.current_thread() or not self.is_alive():
            original(self, timeout)
            return

        def attempt(seconds: float) -> bool:
            original(self, seconds)
            return not self.is_alive()

        strand.why = Blocked(JOIN, thread=self if timeout is None else None)
        try:
            if strand.helper:
                original(self, timeout)
            else:
                strand.baton.wait_outside(strand, attempt, timeout)
        finally:
            strand.why = None

    return join


def _waiting_strand(timeout: float | None) -> Strand | None:
    """For a thread that a rank started, only a wait without a timeout is noted."""
    strand = here.strand
    if strand is not None and strand.helper:
        return strand if timeout is None and strand.state is OUTSIDE else None
    return main_strand()


def is_idle_worker(thread: threading.Thread | None, frame: FrameType | None) -> bool:
    """Whether a thread of a `ThreadPoolExecutor` has nothing to do until someone submits. Its
    frame's variables are not looked at: they would stay alive, and with them the pool."""
    if thread is None or frame is None or frame.f_code is not _pool_worker:
        return False
    queue: Any = pools._threads_queues.get(thread)
    return queue is not None and bool(queue.empty())


TOOLS = frozenset(
    {"debugpy", "execnet", "ipykernel", "pydevd", "pytest_timeout", "tqdm", "xdist", "zmq"}
)
"""Packages whose threads watch over the process and know nothing of what ranks wait for."""


SERVICES = {
    "multiprocessing.resource_sharer",
    "torch._inductor.compile_worker.subproc_pool",
    "tqdm._monitor",
}
"""Modules whose threads serve the whole process, whichever thread starts them."""


def is_tool(thread: threading.Thread) -> bool:
    if getattr(getattr(thread, "_target", None), "__module__", None) in SERVICES:
        return True
    for part in (getattr(thread, "function", None), getattr(thread, "_target", None)):
        if getattr(part, "__module__", None) is not None:
            return str(part.__module__).partition(".")[0] in TOOLS
    return type(thread).__module__.partition(".")[0] in TOOLS


def is_frame_of_tool(frame: FrameType) -> bool:
    """For a thread that Python's `threading` does not know, as those of pytest-xdist: whether
    it began in such a package."""
    while frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in TOOLS
