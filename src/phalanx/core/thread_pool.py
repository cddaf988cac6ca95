"""Keep the threads of ranks from one run to the next.

To start four threads takes as long as a small test. A caller that runs many tests keeps a
thread pool and gives it to the launcher; without one, every run starts new threads, and none of
them outlives it. A thread is used again only if the run succeeded and left the thread as it
was. What the run kept in a `threading.local` is dropped, as at the end of a thread.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from phalanx.core.core_affinity import SharedCore
from phalanx.core.strand import Strand
from phalanx.errors import RankStopped

Job = Callable[[], None]


class RankThreadPool:
    """One thread per rank. `state_of_thread` returns what a thread keeps by itself (tracing and
    the like): where that has changed, a new thread takes the next job. The old thread starts
    it, and calls `undo` first, for what a thread inherits from the one that starts it."""

    def __init__(
        self,
        state_of_thread: Callable[[], Hashable] = lambda: None,
        undo: Callable[[], object] = lambda: None,
    ) -> None:
        self._state_of_thread = state_of_thread
        self._undo = undo
        self._workers: list[_Worker] = []
        self.shared_core = SharedCore()
        self.groups_for_reuse: dict[Hashable, Any] = {}
        """What the layers above keep from a successful run for the next run of the same
        kind."""
        _thread_pools.add(self)

    def begin(self, strand: Strand, job: Job) -> None:
        """Let the thread of that rank do the job; its last job must have ended. The thread
        wakes up when the strand gets the baton for the first time."""
        while len(self._workers) <= strand.rank:
            self._workers.append(_Worker(len(self._workers), self._state_of_thread, self._undo))
        self._workers[strand.rank].begin(strand, job)

    def close(self) -> None:
        """End the threads; those that are stuck are left alone."""
        self.groups_for_reuse.clear()
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()

    def become_a_process(self) -> None:
        """In a forked child, in which the threads do not exist."""
        self._workers = []
        self.groups_for_reuse.clear()
        self.shared_core = SharedCore()


_thread_pools: weakref.WeakSet[RankThreadPool] = weakref.WeakSet()


def _become_a_process() -> None:
    for thread_pool in list(_thread_pools):
        thread_pool.become_a_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_become_a_process)


class _Worker:
    def __init__(
        self, rank: int, state_of_thread: Callable[[], Hashable], undo: Callable[[], object]
    ) -> None:
        self._rank = rank
        self._state_of_thread = state_of_thread
        self._undo = undo
        self._gate = threading.Lock()
        self._gate.acquire()
        self._job: Job | None = None
        self._ending = False
        self._cpu_clock: int | None = None
        self._thread = self._start()

    def begin(self, strand: Strand, job: Job) -> None:
        if not self._thread.is_alive():  # a job ended in a way that no program should know
            self._thread = self._start()
        self._job = job
        strand.gate = self._gate
        strand.ident, strand.native = self._numbers
        strand.cpu_clock = self._cpu_clock

    def end(self) -> None:
        self._ending = True
        with contextlib.suppress(RuntimeError):  # it is open already
            self._gate.release()
        if self._thread is not threading.current_thread():
            self._thread.join(0.2)

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._loop, name=f"rank-{self._rank}", daemon=True)
        thread.start()
        no_daemon(thread)
        self._numbers = (thread.ident or 0, thread.native_id or 0)
        with contextlib.suppress(AttributeError):  # macOS and Windows have no such clock
            self._cpu_clock = time.pthread_getcpuclockid(thread.ident or 0)
        return thread

    def _loop(self) -> None:
        own, kept_here = self._state_of_thread(), _locals_here()
        while True:
            self._gate.acquire()
            if self._ending:
                return
            if self._job is None:
                continue
            if self._state_of_thread() != own:
                self._undo()
                self._thread = self._start()
                self._gate.release()
                return
            job, self._job = self._job, None
            self._gate.release()  # the job begins by taking its turn
            try:
                contextvars.Context().run(job)
            except RankStopped:  # thrown in when the job had just ended
                return
            del job  # what it holds must not wait for the next one
            kept_here.clear()


FORGETS_LOCALS = sys.implementation.name == "cpython" and sys.version_info < (3, 13)
"""Whether a thread can drop what it has in `threading.local` objects and live on. Where it
cannot, the engine closes the thread pool after a run that may have left something there."""


def _locals_here() -> dict[Any, Any]:
    """What this thread has in `threading.local` objects. Up to Python 3.12 it is in a
    dictionary of the thread, which C code can read and Python code cannot."""
    if not FORGETS_LOCALS:
        return {}
    ask = ctypes.pythonapi.PyThreadState_GetDict
    ask.restype = ctypes.c_void_p  # a borrowed reference
    found: dict[Any, Any] = ctypes.cast(ask(), ctypes.py_object).value
    return found


def no_daemon(thread: threading.Thread) -> None:
    """Threads that this one starts are no daemons by default, as in a process. It was started
    as a daemon, which is what counts at the end of the interpreter: one that cannot be
    stopped must not keep that from ending. Python has no public name for the difference."""
    thread._daemonic = False  # type: ignore[attr-defined]
