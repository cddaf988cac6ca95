"""The worlds of a script that starts its ranks: open ones with their referee, and what came of
those that have ended. Used by `spawning_launcher.py`. Values; must never wait.
"""

from __future__ import annotations

import socket
from collections.abc import Set
from dataclasses import dataclass, field

from phalanx.engines.referee.referee_server import RefereeServer
from phalanx.engines.spawned.spawned_messages import Joins, ScriptEnd
from phalanx.errors import HazardError, VerdictError
from phalanx.matching.other_group import INIT
from phalanx.model import Group, Op, RankView, Tally, Wait


@dataclass
class SpawnedWorld:
    """What came of one world: how much was checked, and its error, if it had one."""

    tally: Tally
    error: BaseException | None = None
    pids: Set[int] = frozenset()
    """The processes of its ranks, and those that started them."""
    is_known: bool = False
    """Whether the script has read the exit code of one that failed."""

    @property
    def has_report(self) -> bool:
        return isinstance(self.error, (VerdictError, HazardError))


@dataclass
class SpawnedEnd:
    """What came of the script: its exit status, how it ended, what it has not printed yet, and
    the worlds that there were."""

    status: int = 0
    end: ScriptEnd | None = None
    worlds: list[SpawnedWorld] = field(default_factory=list)
    error: BaseException | None = None
    """A standstill, by which the run was ended."""
    is_suite: bool = False
    """Whether the script has asked for the errors of worlds, test by test."""
    untold: list[SpawnedWorld] = field(default_factory=list)
    """Worlds with a report of which no test of the suite knows."""


class OpenWorld:
    """Ranks that meet at one address, and their referee."""

    def __init__(self, joins: Joins, referee: RefereeServer) -> None:
        self.place, self.size = joins.place, joins.size
        self.referee = referee
        self.lines: dict[int, socket.socket] = {}
        self.pids: Set[int] = frozenset()
        self.is_known = False
        self.has_lost = False
        """Whether a rank has left: who comes now belongs to another world."""

    def takes(self, joins: Joins) -> bool:
        same = (self.place, self.size) == (joins.place, joins.size)
        return same and not self.has_lost and joins.rank not in self.lines

    def views(self) -> list[RankView]:
        """What its ranks do; as long as some are missing, the others wait in `INIT`."""
        if self.has_lost or len(self.lines) == self.size:
            return list(self.referee.snapshot().ranks)
        missing = tuple(rank for rank in range(self.size) if rank not in self.lines)
        group = Group(f"{self.place}, world_size={self.size}", tuple(range(self.size)))
        return [
            RankView(rank, "waiting", Wait(Op(rank, INIT, group), missing))
            for rank in sorted(self.lines)
        ]
