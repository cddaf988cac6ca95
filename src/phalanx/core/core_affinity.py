"""Keep the ranks' threads on one core while they do little but hand the baton over.

Only one rank runs at a time. If the next one wakes up on another core, the hand-over waits
until that core leaves its sleep state, and every object is in the wrong cache: on two cores a
hand-over takes 14 us, against 4 us when all threads share one core. Ranks that compute need all
cores, for torch's own threads.

So the threads start on one core. The monitor spreads them as soon as a tick brings few
hand-overs, and gathers them again when there are many. Linux only; elsewhere nothing happens.
Threads and masks that a program has set itself are left alone.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from phalanx.system import getpid

MANY = 3000.0
"""Hand-overs per second above which the threads are faster on one core."""

MANY_ON_DEVICES = 100.0
"""The same where a GPU computes: ranks only launch, one after the other, so a second core is of
no use to them (16 cores: 8 ranks that train and meet once in a step take 7.4 ms on one core, 12
on all)."""
WINDOW_ON_DEVICES = 0.1
"""Seconds in which so few are counted."""

_TASKS = "/proc/self/task"
_SUPPORTED = hasattr(os, "SCHED_BATCH") and os.path.isdir(_TASKS)

# Kept, because during runs these names in `os` stand for calls that do more.
_affinity = getattr(os, "sched_getaffinity", None)
_stat = os.stat


_NO_PRIORITY: Any = os.sched_param(0) if _SUPPORTED else None
_sched_getcpu: Any = None
with suppress(AttributeError, OSError, TypeError):  # not everywhere
    _sched_getcpu = ctypes.CDLL(None).sched_getcpu


class SharedCore:
    """Threads that stay together on one core from run to run, because they are kept: see
    `thread_pool.py`. Moving four of them there and back takes as long as a barrier of all."""

    def __init__(self) -> None:
        self.core: set[int] = set()
        self.natives: set[int] = set()
        self.threads = 0
        """How many threads the process had when all others were sent away."""


class CoreAffinity:
    """Whether the threads of a run are on one core, and which.

    In the affinity they are *batch* threads too: such a thread does not interrupt the one that
    wakes it up, which is about to go to sleep anyway.
    """

    def __init__(self, shared_core: SharedCore | None = None) -> None:
        self._shared_core = SharedCore() if shared_core is None else shared_core
        self._all = _allowed_cores()
        if not self._shared_core.natives or not self._shared_core.core <= self._all:
            self._shared_core.natives.clear()
            self._shared_core.core = {_current_core(self._all)}
        self._one = self._shared_core.core
        self._is_shared = shared_core is not None
        self._launcher = 0
        self.together = len(self._all) > 1
        self.on_devices = False
        """Whether collectives move data of GPUs."""

    @property
    def many(self) -> float:
        """Hand-overs per second above which the threads belong on one core."""
        return MANY_ON_DEVICES if self.on_devices else MANY

    @property
    def window(self) -> float:
        """Seconds in which they are to be counted, at least."""
        return WINDOW_ON_DEVICES if self.on_devices else 0.0

    def enter(self, native: int = 0) -> None:
        """The first call in a rank's thread, which may know its number."""
        native = native or threading.get_native_id()
        if self.together and native not in self._shared_core.natives:
            _bring(0, self._one)
            self._shared_core.natives.add(native)

    def visit(self) -> None:
        """The first call in the launcher, if there is a shared core: it waits on the ranks'
        core, so that each wakes the other without waking a core."""
        if not self._is_shared or not self.together:
            return
        if _cores_of(0) == self._all and os.sched_getscheduler(0) == os.SCHED_OTHER:
            self._launcher = threading.get_native_id()
            _visiting[self._launcher] = self._all
            _bring(0, self._one)

    def go_home(self) -> None:
        """The launcher has work to do, or the run is over."""
        if self._launcher:
            self._send_away(self._launcher)
            _visiting.pop(self._launcher, None)
            self._launcher = 0

    def end(self) -> None:
        """After a run: threads in a shared core stay unless they have started others."""
        self.go_home()
        if self.together and _number_of_threads() != self._shared_core.threads:
            self.scatter()
            self._shared_core.threads = _number_of_threads()

    def gather(self, natives: Iterable[int]) -> None:
        """Move these threads to the core on which the launcher runs."""
        if not self.together and len(self._all) > 1:
            self.together = True
            self._one = self._shared_core.core = {_current_core(self._all)}
            for native in natives:
                if _cores_of(native) == self._all:
                    _bring(native, self._one)

    def scatter(self) -> None:
        """Let the threads run on all cores again: also threads that gathered ones have started,
        torch's own among them, because a thread inherits its core."""
        if self.together:
            self.together = False
            natives = set(self._shared_core.natives)
            self._shared_core.natives.clear()
            with suppress(OSError):  # a rank may have all files open that there can be
                natives.update(map(int, os.listdir(_TASKS)))
            for native in natives:
                self._send_away(native)

    def step_out(self) -> None:
        """Before the calling thread starts a process, which would stay on the one core, or
        asks for the cores of this one."""
        self.go_home()
        if self.together:
            self._shared_core.natives.discard(threading.get_native_id())
            self._send_away(0)

    def without_ours(self, native: int, cores: set[int]) -> set[int]:
        """The cores that a thread would have without us. The monitor may have gathered a thread
        that has just stepped out."""
        with suppress(OSError):
            if cores == self._one and os.sched_getscheduler(native) == os.SCHED_BATCH:
                return set(self._all)
        return cores

    def _send_away(self, native: int) -> None:
        try:
            batch = os.sched_getscheduler(native) == os.SCHED_BATCH
            if batch and _cores_of(native) == self._one:
                os.sched_setaffinity(native, self._all)
                os.sched_setscheduler(native, os.SCHED_OTHER, _NO_PRIORITY)
        except OSError:
            pass


def _bring(native: int, cores: set[int]) -> None:
    try:
        os.sched_setaffinity(native, cores)
        os.sched_setscheduler(native, os.SCHED_BATCH, _NO_PRIORITY)
    except OSError:  # the thread may have ended, or a sandbox may forbid it
        pass


def _cores_of(native: int) -> set[int]:
    try:
        return _affinity(native) if _affinity is not None else set()
    except OSError:
        return set()


_visiting: dict[int, set[int]] = {}
"""Launchers that wait on the core of their ranks, and what they have otherwise."""


def _allowed_cores() -> set[int]:
    """The cores of the main thread, which is no rank; a nested run asks here too."""
    if not _SUPPORTED:
        return set()
    main = getpid()
    return _visiting.get(main) or _cores_of(main)


def _number_of_threads() -> int:
    try:
        return _stat(_TASKS).st_nlink
    except OSError:
        return -1


def _current_core(allowed: set[int]) -> int:
    """The core of the launcher: the system has put it where there is room."""
    core = _sched_getcpu() if _sched_getcpu is not None else -1
    return core if core in allowed else min(allowed, default=0)
