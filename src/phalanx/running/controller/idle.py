"""Threads of libraries that cannot communicate, or not before somebody gives them work.

Used by `link.py`, which tells the desk how many threads of a rank may still make a call: as
long as one may, nothing is a proved deadlock. Names private to Python's own modules are here
only, checked with 3.11 to 3.13; where they are others, a thread counts as one that may.
"""

from __future__ import annotations

import sys
import threading
from queue import SimpleQueue
from typing import Any

from phalanx.running.blocking import SERVICES

MUTE = SERVICES | {
    "multiprocessing.queues",  # the thread that feeds a queue's pipe
    "torch.utils.data._utils.pin_memory",
}
"""Modules whose threads run no code of the program's."""

POOLS = "multiprocessing.pool"
WORKERS = {("concurrent.futures.thread", "_worker"): "work_item", (POOLS, "worker"): "task"}
"""Functions that do the program's work, piece by piece, and where they hold one."""


def is_mute(thread: threading.Thread) -> bool:
    target: Any = getattr(thread, "_target", None)
    module: str = getattr(target, "__module__", None) or ""
    if module in MUTE or type(thread).__module__ in MUTE:
        return True
    name, given = getattr(target, "__name__", ""), getattr(thread, "_args", ())
    if module == POOLS and name != "worker":
        return _is_mute_in_pool(name, given)
    if (module, name) in WORKERS:
        return _waits_for_work(thread, target.__code__, WORKERS[module, name], given)
    return False


def _is_mute_in_pool(name: str, given: Any) -> bool:
    """Results are handed to callbacks of the program, while there are any to come."""
    if name == "_handle_results":
        return bool(given) and given[-1] == {}
    return name in ("_handle_workers", "_handle_tasks")


def _waits_for_work(thread: threading.Thread, code: Any, item: str, given: Any) -> bool:
    """A worker with nothing to do, and nothing put down for it. What a pool has been asked for
    and not yet put down is known to the thread that hands out its results."""
    frame = sys._current_frames().get(thread.ident or 0)
    queue = next((each for each in given if isinstance(each, SimpleQueue)), None)
    return (
        frame is not None
        and frame.f_code is code
        and frame.f_locals.get(item) is None
        and queue is not None
        and queue.empty()
    )
