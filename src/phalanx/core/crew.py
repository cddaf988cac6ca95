"""Keep the threads of ranks from one run to the next.

Starting four threads takes as long as a small test. Whoever runs many tests keeps a crew and
gives it to the launcher; without one every run has new threads, and none outlives it. A thread
is used again only if the run went well and left the thread as it was.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

from phalanx.core.baton import Strand
from phalanx.core.huddle import Camp
from phalanx.errors import RankStopped

Job = Callable[[], None]


class Crew:
    """One thread per rank. `state_of_thread` tells what a thread keeps by itself, tracing and
    the like: where that has changed, a new thread takes the next job."""

    def __init__(self, state_of_thread: Callable[[], Hashable] = lambda: None) -> None:
        self._state_of_thread = state_of_thread
        self._mates: list[_Mate] = []
        self.camp = Camp()
        self.heirlooms: dict[Hashable, Any] = {}
        """What the layers above keep from a run that went well for one like it."""

    def begin(self, strand: Strand, job: Job) -> None:
        """Let the thread of that rank do the job; the one of before must have ended. The
        thread wakes when the strand gets the baton for the first time, not before."""
        while len(self._mates) <= strand.rank:
            self._mates.append(_Mate(len(self._mates), self._state_of_thread))
        self._mates[strand.rank].begin(strand, job)

    def close(self) -> None:
        """Let the threads end; those that are stuck are left where they are."""
        self.heirlooms.clear()
        mates, self._mates = self._mates, []
        for mate in mates:
            mate.end()


class _Mate:
    def __init__(self, rank: int, state_of_thread: Callable[[], Hashable]) -> None:
        self._rank = rank
        self._state_of_thread = state_of_thread
        self._gate = threading.Lock()
        self._gate.acquire()
        self._job: Job | None = None
        self._ending = False
        self._cpu_clock: int | None = None
        self._thread = self._start()

    def begin(self, strand: Strand, job: Job) -> None:
        self._job = job
        strand.gate = self._gate
        strand.ident = self._thread.ident or 0
        strand.native = self._thread.native_id or 0
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
        with contextlib.suppress(AttributeError):  # macOS and Windows have no such clock
            self._cpu_clock = time.pthread_getcpuclockid(thread.ident or 0)
        return thread

    def _loop(self) -> None:
        own = self._state_of_thread()
        while True:
            self._gate.acquire()
            if self._ending:
                return
            if self._job is None:
                continue
            if self._state_of_thread() != own:
                self._thread = self._start()
                self._gate.release()
                return
            job, self._job = self._job, None
            self._gate.release()  # the job begins by taking its turn
            try:
                contextvars.Context().run(job)
            except RankStopped:  # thrown in when the job had just ended
                return


def no_daemon(thread: threading.Thread) -> None:
    """Threads that this one starts are no daemons by default, as in a process. It was started
    as a daemon, which is what counts at the end of the interpreter: one that cannot be
    stopped must not keep that from ending. Python has no public name for the difference."""
    thread._daemonic = False  # type: ignore[attr-defined]
