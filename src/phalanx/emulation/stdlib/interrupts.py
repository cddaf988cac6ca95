"""A signal for a rank that computes: its handler runs in a second thread, and what the handler
raises is raised in the rank.

Python runs handlers only in the main thread of a process. A rank runs its own where it waits;
for a rank that does not wait, a thread runs the handler on its behalf, as a callback thread
does for a rank that is blocked. An exception of the handler is raised in the rank's own thread,
at a point where it executes the program's code and not ours. Used by `signals.py`, and by
`spawned_ranks.py` to end one rank.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from phalanx.core.strand import DONE, OUTSIDE, RUNNING, Strand, here
from phalanx.errors import RankStopped
from phalanx.system import current_frames, monotonic

LATE = 0.03
"""Seconds in which a rank may take a signal itself, before a thread does it."""
AGAIN = 0.002
"""Seconds between two attempts to find the rank in the program's code."""

_OURS = "phalanx."
_BELOW = (
    "phalanx.engines.threads.script_on_threads",
    "phalanx.engines.threads.self_spawning_scripts",
    "phalanx.engines.threads.threads_engine",
    "phalanx.engines.world",
    "phalanx.testing.",
)
"""Modules of ours that call the program, hence lie below its frames."""

_sleep = time.sleep


class PendingSignal:
    """One signal for one rank. The first to take it runs the handler: the rank, or a thread on
    its behalf."""

    def __init__(self, strand: Strand, handle: Callable[..., None]) -> None:
        self.strand = strand
        self.cancelled = False
        self.posted_at = monotonic()
        self._open: list[Callable[..., None]] = [handle]

    def take(self) -> Callable[..., None] | None:
        """The handler for the first caller, None for every other."""
        with suppress(IndexError):
            return self._open.pop()
        return None

    def is_taken(self) -> bool:
        return not self._open

    def cancel(self) -> None:
        """The alarm was taken back before its handler ran."""
        self.cancelled = True
        self._open.clear()

    def __call__(self) -> None:
        """Run the handler in the rank's thread where it waits, or in a callback thread while
        that is blocked: then the rank raises the handler's error when it comes back."""
        handle = self.take()
        if handle is None:
            return
        try:
            handle()
        except BaseException as error:
            if here.strand is self.strand:
                raise
            self.strand.baton.wake(self.strand, error)


def run_beside(ring: PendingSignal) -> bool:
    """Called by the launcher now and then. Returns whether nothing is left to do, perhaps
    because a thread has just been started that does it."""
    strand = ring.strand
    if ring.is_taken() or strand.state is DONE:
        return True
    if strand.state is not RUNNING or strand.baton.stopping or strand.on_pending_callback:
        return False
    if monotonic() - ring.posted_at < LATE:
        return False
    handle = ring.take()
    if handle is None:
        return True
    helper = strand.baton.add(strand.rank, strand.local, helper=True)
    thread = threading.Thread(target=_act, args=(ring, helper, handle), daemon=True)
    strand.local.helpers.append(thread)
    thread.start()
    return True


def _act(ring: PendingSignal, helper: Strand, handle: Callable[..., None]) -> None:
    """In a thread of the rank: run the handler, and raise its error in the rank."""
    strand, baton = ring.strand, ring.strand.baton
    baton.adopt(helper)
    strand.local.callback_threads.add(helper)
    try:
        with suppress(RankStopped):
            _handle(ring, handle)
    finally:
        baton.finish(helper)
        strand.local.callback_threads.discard(helper)
        with suppress(ValueError):
            strand.local.helpers.remove(threading.current_thread())


def _handle(ring: PendingSignal, handle: Callable[..., None]) -> None:
    try:
        handle(frame=current_frames().get(ring.strand.ident))
    except RankStopped:
        raise
    except BaseException as error:
        while not (ring.cancelled or throw(ring.strand, error)):
            _sleep(AGAIN)


def throw(strand: Strand, error: BaseException) -> bool:
    """Raise this in a rank, from another thread. Returns False if it executes code of ours at
    the moment. To release the GIL first leaves time to look and throw while the rank does not
    move."""
    _sleep(0)
    if strand.state is DONE or strand.baton.stopping:
        return True
    if strand.state is not RUNNING and strand.state is not OUTSIDE:
        strand.baton.wake(strand, error)
        return True
    if strand.baton.critical or not _is_in_program(current_frames().get(strand.ident)):
        if strand.state is OUTSIDE:  # in a wait of ours, which raises it
            strand.baton.wake(strand, error)
        return strand.state is OUTSIDE
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(strand.ident), ctypes.py_object(_carrier(error))
    )
    return True


def _is_in_program(frame: FrameType | None) -> bool:
    """Whether the innermost frames are the program's, or of libraries that it has called."""
    innermost = True
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_OURS):
            return not innermost and name.startswith(_BELOW)
        innermost = False
        frame = frame.f_back
    return False


def _carrier(error: BaseException) -> Any:
    """A class to throw into a thread, since Python throws classes only. When it is called, it
    returns the given error."""

    def new(kind: Any, *args: Any) -> BaseException:
        return error

    kind = type(error)
    try:
        return type(kind.__name__, (kind,), {"__new__": new})
    except Exception:  # a class that none can be derived from
        return type(kind.__name__, (BaseException,), {"__new__": new})
