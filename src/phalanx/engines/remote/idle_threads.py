"""Threads of libraries that cannot communicate, or not before somebody gives them work.

Used by `link.py`, which tells the referee how many threads of a rank may still make a call: as
long as one may, nothing is a proved deadlock. Names private to `multiprocessing` are here only,
checked with Python 3.11 to 3.13; where they are others, a thread counts as one that may.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import WATCHED
from phalanx.emulation.stdlib.blocking import SERVICES, is_idle_worker
from phalanx.system import current_frames

MUTE = SERVICES | {
    "multiprocessing.queues",  # the thread that feeds a queue's pipe
    "torch.utils.data._utils.pin_memory",
}
"""Modules whose threads run no code of the program's."""

POOLS = "multiprocessing.pool"


def is_mute(thread: threading.Thread) -> bool:
    target: Any = getattr(thread, "_target", None)
    module: str = getattr(target, "__module__", None) or ""
    if module in MUTE or type(thread).__module__ in MUTE:
        return True
    if module == POOLS:
        # Its workers do what it was asked for, and its callbacks get the results of that.
        name = getattr(target, "__name__", "")
        return name in ("_handle_workers", "_handle_tasks") or _are_pools_idle()
    return _waits_for_work(thread)


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
