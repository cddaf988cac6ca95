"""Python's own waits: for a condition (events, queues, futures) and for the end of a thread.

A rank that waits so steps out of the baton and leaves a note of what it waits for, by which
`partial_deadlock.py` decides whether it can ever come. Threads that ranks started leave the
note as well; threads that belong to no rank get the originals. Installed by
`replaced_calls.py`.

On a virtual clock a wait with a timeout parks, in any thread of a rank: it ends when what it
waits for has happened, which the baton asks for, or when the clock comes to its end. One
without a timeout says that it waits, so that the clock may jump meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pools
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any

from phalanx import callsite
from phalanx.core.strand import OUTSIDE, RUNNING, Strand, here

CONDITION = "threading.Condition.wait"
JOIN = "threading.Thread.join"

_pool_worker: CodeType = pools._worker.__code__
_acquire = type(threading.Lock()).acquire
"""As it is, also where a virtual clock replaces it."""


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


def is_on_virtual_clock(strand: Strand | None) -> bool:
    """Whether waits of the calling thread, whose strand this is, pass on a clock that jumps."""
    return strand is not None and strand.baton.clock.jumps and not strand.notified


def wait_on_clock(
    strand: Strand, why: Any, timeout: float, waits: Callable[[], bool] | None = None
) -> bool:
    """Block until `waits` does not hold, True, or for so long on the clock of the run, False.
    `waits` must not block. A thread that runs without the baton has it only for the wait."""
    baton, visiting = strand.baton, strand.helper and strand.state is not RUNNING
    if strand.state is not RUNNING:
        baton.rejoin(strand)
    until, in_time = baton.clock.now() + timeout, True
    while in_time and (waits is None or waits()):
        in_time = _park_watched(strand, why, until, waits)
        if in_time:
            baton.run_pending_callbacks(strand)
    if visiting:
        baton.leave(strand)
    return in_time or (waits is not None and not waits())


def _park_watched(
    strand: Strand, why: Any, until: float, waits: Callable[[], bool] | None
) -> bool:
    """Callbacks, which may wait for something else, are not run meanwhile."""
    outer, strand.waits = strand.waits, waits
    strand.baton.watched.add(strand)
    try:
        return strand.baton.park(strand, why, deadline=until, sleeping=True)
    finally:
        strand.waits = outer
        strand.baton.watched.discard(strand)


@contextmanager
def known_to_wait(strand: Strand, waits: Callable[[], bool] | None) -> Iterator[None]:
    """The calling thread waits natively, as long as this holds: a virtual clock may jump. None:
    that is not known."""
    outer, strand.waits = strand.waits, waits if strand.baton.clock.jumps else None
    try:
        yield
    finally:
        strand.waits = outer


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


def come_back(strand: Strand) -> None:
    """On a busy machine it takes long until a new thread is there, and the rank that waits for
    it is overtaken."""
    if not strand.helper and strand.state is OUTSIDE:
        strand.baton.rejoin(strand)


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
        strand.why = why = Blocked(
            CONDITION,
            is_waiting=partial(_is_waiting, self, waiter) if timeout is None else None,
        )
        lock_state = self._release_save()
        notified = False
        try:
            notified = _await_notify(strand, why, partial(_is_waiting, self, waiter), timeout)
        finally:
            strand.why = None
            self._acquire_restore(lock_state)
            if not notified:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
        return notified

    return wait


def _is_waiting(condition: Any, waiter: Any) -> bool:
    """`notify` removes the lock from the list, which shows before the thread wakes up."""
    return waiter in condition._waiters


def _await_notify(
    strand: Strand, why: Blocked, waits: partial[bool], timeout: float | None
) -> bool:
    waiter = waits.args[1]
    if timeout is not None and timeout > 0 and is_on_virtual_clock(strand):
        return wait_on_clock(strand, why, timeout, waits)
    with known_to_wait(strand, waits):
        if strand.helper:
            return bool(_acquire(waiter))
        return strand.baton.wait_outside(strand, partial(_acquire, waiter, True), timeout)


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

        strand.why = why = Blocked(JOIN, thread=self if timeout is None else None)
        waits = _whether_lives(strand, self)
        try:
            if waits and timeout and timeout > 0 and is_on_virtual_clock(strand):
                if wait_on_clock(strand, why, timeout, waits):
                    original(self)
                return
            with known_to_wait(strand, waits):
                if strand.helper:
                    original(self, timeout)
                else:
                    strand.baton.wait_outside(strand, attempt, timeout)
        finally:
            strand.why = None

    return join


def _whether_lives(strand: Strand, thread: threading.Thread) -> Callable[[], bool] | None:
    """A thread of a rank has ended when its strand has: the rest of it takes no time. Of other
    threads, as those of a pool, nobody knows how long they take."""
    strands = strand.baton.strands
    theirs = next((each for each in strands if each.thread is thread), None)
    return None if theirs is None else lambda: theirs in strands


def _waiting_strand(timeout: float | None) -> Strand | None:
    """For a thread that a rank started, a wait with a timeout is noted on a virtual clock
    only."""
    strand = here.strand
    if strand is None or not strand.helper:
        return main_strand()
    if timeout is not None:
        return strand if timeout > 0 and is_on_virtual_clock(strand) else None
    return strand if strand.state is OUTSIDE else None


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
