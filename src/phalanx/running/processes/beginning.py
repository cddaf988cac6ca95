"""How a rank begins: environment, folder, arguments, random numbers; and back to that.

Used by `rank.py`. A fresh call finds a rank as it was when it was started, but warm. Groups of
before are put away and not destroyed: Gloo takes 20 to 40 ms for that and holds Python's lock
meanwhile (measured with torch 2.13 on 4 ranks; making a new group takes 3 to 5). They end with
the process, which is replaced when it has gathered too many.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import torch
import torch.distributed as dist

from phalanx.backend import private
from phalanx.running.processes.messages import Start

MOST_GROUPS = 32
"""Groups that may lie about. Each costs three idle threads and, with 4 ranks, 7 descriptors."""


def settle_in(start: Start) -> None:
    """Be where the program wants the rank to be."""
    os.environ.clear()
    os.environ.update(start.environ)
    sys.path[:] = start.search_path
    sys.argv[:] = start.argv
    os.chdir(start.folder)


class Beginning:
    """What a rank was like before its first call."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._torch = torch.get_rng_state()
        self._random = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy: Any = None if numpy is None else numpy.random.get_state()
        self._put_away: list[Any] = []

    @property
    def is_worn(self) -> bool:
        return len(self._put_away) > MOST_GROUPS

    def come_back(self) -> None:
        self._leave_groups()
        settle_in(self._start)
        torch.set_rng_state(self._torch)
        random.setstate(self._random)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self._numpy is not None:
            numpy.random.set_state(self._numpy)

    def _leave_groups(self) -> None:
        if not dist.is_initialized():
            return
        if dist.get_backend() == dist.Backend.GLOO:
            self._put_away += private.put_groups_away()
        else:
            dist.destroy_process_group()
