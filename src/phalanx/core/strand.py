"""A strand: a thread that the baton knows, and what state it is in. Used with `baton.py`.

States of a strand:

    READY    wants to run, stands in the queue
    RUNNING  holds the baton
    PARKED   waits for something that another strand does
    OUTSIDE  runs or blocks where we do not see it (native wait, helper thread's own work)
    DONE     has ended
"""

from __future__ import annotations

import platform
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.system import current_frames

if TYPE_CHECKING:
    from phalanx.core.baton import Baton
    from phalanx.core.choices import Step

READY, RUNNING, PARKED, OUTSIDE, DONE = "ready", "running", "parked", "outside", "done"


class Switcher:
    """What the layer above does at a hand-over, e.g. swap random generators. Base: nothing.

    `leave` is called before the next strand runs, `enter` by the strand that now does.
    """

    def leave(self, strand: Strand) -> None: ...

    def enter(self, strand: Strand) -> None: ...


_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
"""The system call by which threads wait for locks; its fourth argument is the timeout."""


class _Here(threading.local):
    strand: Strand | None = None


here = _Here()
"""`here.strand` is the calling thread's strand, or None if the thread belongs to no rank."""


class Strand:
    """One thread that the baton knows. `local` belongs to the layer above."""

    __slots__ = (
        "baton",
        "cpu_clock",
        "error",
        "pending_callbacks",
        "gate",
        "granted",
        "helper",
        "ident",
        "inside",
        "limit",
        "local",
        "look",
        "native",
        "number",
        "on_pending_callback",
        "rank",
        "refusals",
        "state",
        "step",
        "thread",
        "notified",
        "timed_out",
        "timer",
        "began",
        "polls",
        "waits",
        "why",
    )

    def __init__(self, baton: Baton, rank: int, local: Any, *, helper: bool) -> None:
        self.baton = baton
        self.rank = rank
        self.local = local
        self.helper = helper
        self.number = 0
        """Of the rank's own thread 0, then of those that it started, in order."""
        self.state = OUTSIDE if helper else READY
        self.gate = threading.Lock()
        self.gate.acquire()
        self.ident = 0
        self.native = 0
        self.cpu_clock: int | None = None
        self.error: BaseException | None = None
        self.pending_callbacks: deque[Callable[[], None]] = deque()
        self.on_pending_callback = False
        self.limit: float | None = None
        self.timer = 0
        self.timed_out = False
        self.why: Any = None
        self.waits: Callable[[], bool] | None = None
        """For one that waits natively, or for what the baton does not see: whether it still
        does. Asked before a virtual clock jumps; must not block."""
        self.began = 0.0
        """When it got the baton last, where computing is measured."""
        self.polls: Any = None
        """What `computing.py` knows of its polling."""
        self.inside: Any = None
        """The last call that the program waited for in the call itself."""
        self.refusals = 0
        self.notified = False
        """Whether it was notified of Ctrl-C, and may be reacting to it."""
        self.granted = 0
        """The number of the hand-over that gave it the baton last: unchanged, it has not run
        since."""
        self.thread: threading.Thread | None = None
        """A helper's thread object, as the program knows it."""
        self.step: Step | None = None
        """What it is about to do, where a run's `Choices` decide when."""
        self.look: Any = None
        """What it has looked at last without finding news, in such a run."""


def thread_of(strand: Strand | None) -> int:
    """The rank's own thread is 0, its callbacks are 1; threads that it started have a number of
    their own."""
    if strand is None:
        return 0
    return id(strand) if strand.helper else int(strand.on_pending_callback)


def is_asleep(native: int) -> bool:
    """Whether the thread waits for something: not for a core on a busy machine, nor for a
    disk. Where the system does not tell, the CPU clock has to do."""
    try:
        with open(f"/proc/self/task/{native}/stat", "rb") as stat:
            return stat.read().rpartition(b") ")[2][:1] == b"S"
    except OSError:
        return True


def waits_for_thread(native: int) -> bool:
    """Whether the thread waits in the system for a lock, without a timeout: only a thread of
    this process can let it go on. Where the system does not tell, no."""
    try:
        with open(f"/proc/self/task/{native}/syscall") as file:
            call = file.read().split()
    except OSError:
        return False
    return len(call) > 4 and int(call[0]) == _FUTEX and int(call[4], 16) == 0


def cpu_time(strand: Strand) -> float:
    """The CPU seconds of that strand's thread; where the system has no such clock, how far
    its Python code has got, so that a blocked thread shows no change."""
    if strand.cpu_clock is not None:
        try:
            return time.clock_gettime(strand.cpu_clock)
        except OSError:  # the thread has just ended
            return 0.0
    frame = current_frames().get(strand.ident)
    return float(hash((id(frame), frame.f_lasti))) if frame else 0.0
