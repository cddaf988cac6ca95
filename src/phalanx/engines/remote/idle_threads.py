"""Threads that cannot communicate, or not before somebody gives them work; and the end of a
rank's program, which waits for the others.

Used by `link.py`, which tells the referee how many threads of a rank may still make a call: as
long as one may, nothing is a proved deadlock. Names private to `multiprocessing` are here only,
checked with Python 3.11 to 3.13; where they are others, a thread counts as one that may.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as pools
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from typing import Any

from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import WATCHED
from phalanx.emulation.stdlib.blocking import SERVICES, is_idle_worker
from phalanx.system import current_frames, getpid

MUTE = SERVICES | {
    "multiprocessing.queues",  # the thread that feeds a queue's pipe
    "torch.utils.data._utils.pin_memory",
}
"""Modules whose threads run no code of the program's."""

POOLS = "multiprocessing.pool"
BUSY_LOOK = 0.005
"""Seconds between two looks at a pool that is busy."""


@contextmanager
def threads_joined() -> Iterator[None]:
    """As at the end of a program: wait for the jobs of executors, and for the threads begun
    inside that are no daemons. Workers of executors that have nothing to do go on waiting for
    work."""
    before, pid = set(threading.enumerate()), getpid()
    yield
    if getpid() != pid:
        return  # a child that the program has forked has none of these threads
    with only_joining():
        while _jobs.open:
            wait_for(list(_jobs.open))
        while not all(map(_is_idle, list(pools._threads_queues))):
            time.sleep(BUSY_LOOK)  # in a callback of a job that is done
        while left := _started_since(before):
            left[0].join()


@contextmanager
def only_joining() -> Iterator[None]:
    """This thread waits for others of its rank, and communicates no more."""
    _joining.append(me := threading.current_thread())
    try:
        yield
    finally:
        _joining.remove(me)


_joining: list[threading.Thread] = []


def _started_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """Those that a program must wait for."""
    known = {threading.current_thread(), *before, *pools._threads_queues}
    return [each for each in threading.enumerate() if not each.daemon and each not in known]


def is_mute(thread: threading.Thread) -> bool:
    if thread in _joining:
        return True
    target: Any = getattr(thread, "_target", None)
    module: str = getattr(target, "__module__", None) or ""
    if module in MUTE or type(thread).__module__ in MUTE:
        return True
    if module == POOLS:
        # Its workers do what it was asked for, and its callbacks get the results of that.
        name = getattr(target, "__name__", "")
        return name in ("_handle_workers", "_handle_tasks") or _are_pools_idle()
    return _waits_for_work(thread)


def _is_idle(worker: threading.Thread) -> bool:
    frame = current_frames().get(worker.ident or 0)
    return not worker.is_alive() or is_idle_worker(worker, frame)


def _are_pools_idle() -> bool:
    """Whether all results have been handed out, of all pools."""
    for thread in threading.enumerate():
        if getattr(getattr(thread, "_target", None), "__name__", "") == "_handle_results":
            given: Any = getattr(thread, "_args", ())
            if not given or given[-1] != {}:
                return False
    return True


def _waits_for_work(thread: threading.Thread) -> bool:
    """A worker of an executor. That its queue is empty is not enough: what is put there is
    handed to a thread that waits, before that has taken a step (3.13; for a moment earlier)."""
    frame = current_frames().get(thread.ident or 0)
    return _jobs.is_watched and not _jobs.open and is_idle_worker(thread, frame)


class _Jobs:
    """What executors have been asked for and not done, while somebody watches."""

    def __init__(self) -> None:
        self.open: set[Future[Any]] = set()
        self._take_out: Callable[[], None] | None = None

    @property
    def is_watched(self) -> bool:
        return self._take_out is not None

    def watch(self) -> None:
        if self.is_watched:
            return
        submit = ThreadPoolExecutor.submit

        def noting(executor: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = submit(executor, *args, **kwargs)
            self.open.add(future)
            future.add_done_callback(self.open.discard)
            return future

        self._take_out = put_in(WATCHED, [(ThreadPoolExecutor, "submit", noting)])

    def leave(self) -> None:
        if self._take_out is not None:
            self._take_out()
            self._take_out = None
            self.open.clear()


_jobs = _Jobs()
watch_executors, leave_executors = _jobs.watch, _jobs.leave
