"""The watch over Python's lock for one run of the threads engine.

`core/lock_watch.py` says what it is for. Here stands what the run tells the process beside.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from phalanx.core.baton import Baton
from phalanx.core.lock_watch import LockWatch
from phalanx.core.strand import DONE
from phalanx.engines.run_settings import IDLE_STALL, Settings
from phalanx.engines.snapshots import thread_name
from phalanx.engines.threads.locked_stall import stall_of
from phalanx.model import Stall

_PROGRAM = os.path.join(os.path.dirname(__file__), "lock_watcher.py")


class RunLockWatch(LockWatch):
    """Made in the launcher's thread. `on_stall` is called there if the run was stalled, with
    what is known of it; None: only that it was."""

    def __init__(
        self, settings: Settings, baton: Baton, on_stall: Callable[[Stall | None], object]
    ) -> None:
        terms = {
            "stall": settings.timeout or IDLE_STALL,
            "work_counts": settings.timeout is None,
            "limit": settings.limit,
            "ranks": settings.ranks,
            "replay": settings.replay,
            "launcher": threading.get_native_id(),
        }
        super().__init__(_PROGRAM, terms)
        self._ranks = settings.ranks
        self._baton = baton
        self._on_stall: Callable[[Stall | None], object] | None = on_stall

    def look(self) -> None:
        """At a tick."""
        self._judge(self.tick(len(self._baton.strands)))

    def end(self) -> None:
        self._judge(self.close())
        self._on_stall = None  # it leads back here

    def _judge(self, seen: dict[str, Any] | None) -> None:
        if seen is None or self._baton.stopping:
            return
        if self._on_stall is not None:
            self._on_stall(stall_of(seen, self._ranks) if seen else None)

    def describe(self) -> dict[str, Any]:
        threads = [
            {
                "rank": strand.rank,
                "ident": strand.ident,
                "native": strand.native,
                "thread": thread_name(strand),
            }
            for strand in list(self._baton.strands)
            if strand.helper and strand.state is not DONE
        ]
        return {"threads": threads}
