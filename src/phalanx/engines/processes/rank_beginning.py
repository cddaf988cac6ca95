"""How a rank begins: environment, folder, arguments; and back to that. What it has from the
program is in `inherited_settings.py`, what else a call may leave behind in `process_state.py`.

Used by `process_rank.py`. A fresh call finds a rank as it was when it was started, but warm.
Groups of before are put away and not destroyed: Gloo takes 20 to 40 ms for that and holds
Python's lock meanwhile (measured with torch 2.13 on 4 ranks; making a new group takes 3 to 5).
They end with the process, which is replaced when it has gathered too many.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.engines.processes.inherited_settings import Inherited, take_over
from phalanx.engines.processes.process_state import Leftovers
from phalanx.engines.processes.rank_messages import Start

MOST_GROUPS = 48
"""Groups that may lie about. Each has three idle threads, one of which wakes up 100 times a
second; 30 of them take 2 % of a core."""


def settle_in(start: Start) -> None:
    """Be where the program wants the rank to be."""
    os.environ.clear()
    os.environ.update(start.environ)
    sys.path[:] = start.search_path
    sys.argv[:] = start.argv
    os.chdir(start.folder)


def _lacks_descriptors() -> bool:
    """With 4 ranks a group has 7 of them, with 16 ranks 20."""
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # not Linux
        return False
    return used > resource.getrlimit(resource.RLIMIT_NOFILE)[0] / 2


class Beginning:
    """What a rank was like before its first call."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._put_away: list[Any] = []
        self._leftovers = Leftovers()

    def is_worn(self, *, fresh: bool) -> bool:
        """After a call. One that was not `fresh` may leave behind what it likes."""
        groups = len(self._put_away)
        too_many = groups > MOST_GROUPS or (groups > 0 and _lacks_descriptors())
        return too_many or (fresh and self._leftovers.stay)

    def come_back(self, given: Inherited) -> None:
        self._leave_groups()
        self._leftovers.put_back()
        settle_in(self._start)
        take_over(given)

    def _leave_groups(self) -> None:
        if dist.is_initialized() and dist.get_backend() != dist.Backend.GLOO:
            dist.destroy_process_group()
        # Also without a group: one that failed to come about has been counted by torch.
        self._put_away += private.put_groups_away()
