"""The ends of threads that ranks have started: what a process waits for when it ends, and what
the run does with those that are still there when all ranks have returned.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from phalanx.backend.session import RankContext, Session
from phalanx.backend.torch_private import private
from phalanx.core.baton import Baton
from phalanx.core.launcher import end_threads
from phalanx.core.strand import PARKED, Strand, here
from phalanx.emulation.stdlib.executor_pools import is_pool_worker, see_off
from phalanx.emulation.stdlib.rank_children import end_pools
from phalanx.emulation.stdlib.replaced_calls import enter_thread
from phalanx.errors import RankStopped
from phalanx.system import monotonic

CALLBACK_THREAD = 1.0
"""Seconds that callbacks may still take when all ranks have returned."""


def join_helpers(context: RankContext) -> None:
    """In the rank, as at the end of a process: threads that are no daemons are waited for."""
    end_pools(context)
    for thread in list(context.helpers):
        if thread.is_alive() and not thread.daemon and not is_pool_worker(thread):
            context.joining = thread
            thread.join()
    context.joining = None


def end_helpers(session: Session, baton: Baton) -> bool:
    """After the run; whether there were any."""
    for context in session.ranks:
        see_off(context)
    if not any(context.helpers for context in session.ranks):
        return False
    until = monotonic() + (0.0 if baton.stopping else CALLBACK_THREAD)
    for context in session.ranks:
        for callback_thread in list(context.callback_threads):
            if callback_thread.thread is not None:
                callback_thread.thread.join(max(0.0, until - monotonic()))
    if any(strand.state is PARKED for strand in baton.strands):
        baton.stop()  # threads that sleep on a virtual clock; nothing else reaches them
    threads = [
        thread
        for context in session.ranks
        for thread in context.helpers
        if not is_pool_worker(thread)
    ]
    end_threads(threads, patience=0.5)
    for context in session.ranks:
        context.helpers.clear()
    return True


def start_callback_thread(strand: Strand) -> None:
    """Run a rank's pending callbacks although its own thread is blocked in native code, or
    done."""
    baton, context = strand.baton, strand.local
    child = baton.add(strand.rank, context, helper=True)
    context.callback_threads.add(child)
    context.untouched = False

    def deliver() -> None:
        baton.adopt(child)
        enter_thread(context)
        with suppress(RankStopped):
            baton.rejoin(child)
            baton.run_pending_callbacks(strand)
            baton.leave(child)
        private.unregister_groups()
        baton.finish(child)
        context.callback_threads.discard(child)

    child.thread = thread = threading.Thread(target=deliver, daemon=True)
    context.helpers.append(thread)
    outer, here.strand = here.strand, None
    try:
        thread.start()
    finally:
        here.strand = outer
