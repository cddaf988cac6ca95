"""Pools of threads: a job belongs to the rank that submits it, whichever thread runs it.

Ranks may share a pool (of a library or a module), so its threads belong to no rank, and each
job gets a strand of its rank for as long as it runs. Installed by `replaced_calls.py`.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as pools
from concurrent.futures import wait as wait_for
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch

from phalanx.backend.session import RankContext
from phalanx.backend.torch_private import private
from phalanx.backend.work import profiler_events
from phalanx.core.strand import Strand, here
from phalanx.emulation.random.helper_thread_rng import as_helper
from phalanx.emulation.stdlib.blocking import come_back, is_idle_worker, starting
from phalanx.errors import RankStopped
from phalanx.system import current_frames

IDLE_LOOKS = 3
UNFINISHED = ("PENDING", "RUNNING")
_busy_in: WeakKeyDictionary[ThreadPoolExecutor, set[_Job]] = WeakKeyDictionary()
_JOBS = "jobs"
_THREADS = "pool threads"
"""The keys under which a rank keeps the futures of its jobs and the threads it has started."""


def pool_patches(enter_thread: Any) -> list[tuple[Any, str, Any]]:
    """`enter_thread(context)` prepares a thread for a rank's work."""
    submit, construct = ThreadPoolExecutor.submit, ThreadPoolExecutor.__init__

    def submit_as_rank(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        strand = here.strand
        if strand is None:
            return submit(self, fn, *args, **kwargs)
        job = _Job(fn, strand, enter_thread, ends_alone=False)
        job.waits_in(self)
        strand.local.uses_pools = True  # a job may make a call before `submit` ends
        starting.now = True  # `submit` holds a lock that all pools of the process share
        try:
            future = submit(self, job, *args, **kwargs)
        except BaseException:
            job.drop()
            raise
        finally:
            starting.now = False
        come_back(strand)
        jobs: set[Any] = strand.local.saved.setdefault(_JOBS, set())
        jobs.add(future)
        future.add_done_callback(jobs.discard)
        future.add_done_callback(job.drop)
        add_callback: Any = partial(_add_callback_as_rank, future, jobs, enter_thread)
        future.add_done_callback = add_callback  # type: ignore[method-assign]
        return future

    def construct_as_rank(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        strand = here.strand
        if strand is not None and self._initializer is not None:
            self._initializer = _Initializer(self._initializer, strand, enter_thread)

    return [
        (ThreadPoolExecutor, "submit", submit_as_rank),
        (ThreadPoolExecutor, "__init__", construct_as_rank),
    ]


def _add_callback_as_rank(future: Any, jobs: set[Any], enter_thread: Any, fn: Any) -> None:
    """The thread that ends the job runs the callback, as a job of the rank that added it, which
    the rank waits for at its end. A rank that comes later runs it in its own thread."""
    add = partial(Future.add_done_callback, future)
    strand = here.strand
    if strand is None or future.done():
        add(fn)
        return
    job, called = _Job(fn, strand, enter_thread, ends_alone=False), Future[None]()
    job.waits_for(future)
    jobs.add(called)
    called.add_done_callback(jobs.discard)

    def call(future: Any) -> None:
        try:
            if here.strand is None:
                job(future)
            else:
                fn(future)
        finally:
            job.drop()
            called.set_result(None)

    add(call)


def is_pool_thread(thread: threading.Thread) -> bool:
    return getattr(thread, "_target", None) is pools._worker


def finish_jobs(context: RankContext) -> None:
    """Block until the submitted jobs are done, as at the end of a process."""
    jobs = context.saved.get(_JOBS)
    if jobs:
        wait_for(list(jobs))


def note_thread(context: RankContext, thread: threading.Thread) -> None:
    """A rank has made a pool start this thread."""
    context.saved.setdefault(_THREADS, []).append(thread)


def see_off(context: RankContext) -> None:
    """After a run: threads of deleted pools are about to end; those of other pools wait for
    work."""
    for thread in context.saved.pop(_THREADS, ()):
        idle = 0  # one that has just done its work looks so for a moment, and holds its pool
        for _ in range(100):
            args: Any = getattr(thread, "_args", None)
            is_open = bool(args) and args[0]() is not None
            frame = current_frames().get(thread.ident or 0)
            idle += is_open and is_idle_worker(thread, frame)
            thread.join(0.003 if is_open else 0.1)
            if idle >= IDLE_LOOKS or not thread.is_alive():
                break


class _Job:
    """A call with a strand of its own, which exists from the moment it is submitted: other
    ranks may wait for what it will do."""

    def __init__(
        self, fn: Any, strand: Strand, enter_thread: Any, *, ends_alone: bool = True
    ) -> None:
        self._fn = fn
        self._enter_thread = enter_thread
        self._ends_alone = ends_alone
        """Else it ends with its future: who waits for that has not heard of it before."""
        self._strand = strand.baton.add(strand.rank, strand.local, helper=True)
        self._is_done = False
        self._busy: set[_Job] = set()
        """Of its pool, the jobs that run."""

    def waits_in(self, pool: Any) -> None:
        """A virtual clock does not wait for a job that waits for the end of others."""
        self._busy = busy = _busy_in.setdefault(pool, set())
        most = pool._max_workers
        self._strand.waits = lambda: len(busy) >= most

    def waits_for(self, future: Future[Any]) -> None:
        """Nor for a callback that waits for its job."""
        self._strand.waits = lambda: future._state in UNFINISHED

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        strand, outer = self._strand, here.strand
        self._busy.add(self)
        strand.waits = None
        strand.thread = threading.current_thread()
        strand.baton.adopt(strand)
        self._enter_thread(strand.local)
        try:
            with as_helper(strand):
                return self._fn(*args, **kwargs)
        finally:
            self._busy.discard(self)
            with suppress(RankStopped):
                profiler_events.leave_thread()
            private.unregister_groups()
            torch.autograd.set_multithreading_enabled(True)
            if strand.local.strikes is not None:
                strand.local.strikes.leave_thread()
            if self._ends_alone:
                self.drop()
            here.strand = outer

    def drop(self, future: Any = None) -> None:
        """The job is done, or will never run."""
        if not self._is_done:
            self._is_done = True
            outer = here.strand
            self._strand.baton.finish(self._strand)
            here.strand = outer


class _Initializer:
    """The initializer that a pool calls in each of its threads."""

    def __init__(self, fn: Any, strand: Strand, enter_thread: Any) -> None:
        self._fn = fn
        self._by = strand
        self._enter_thread = enter_thread

    def __call__(self, *args: Any) -> Any:
        return _Job(self._fn, self._by, self._enter_thread)(*args)


def is_pool_worker(thread: threading.Thread) -> bool:
    """Idle workers of a ThreadPoolExecutor end with the interpreter, not with a rank."""
    return thread in pools._threads_queues
