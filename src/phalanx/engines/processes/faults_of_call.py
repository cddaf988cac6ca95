"""A plan of faults during one call on all ranks: its course, and who is told of it.

Used by `call_on_ranks.py`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from phalanx.engines.processes.rank_processes import RankProcesses
from phalanx.engines.real_faults.fault_course import FaultCourse, Happened
from phalanx.engines.referee.loose_groups import LooseGroups
from phalanx.engines.run_settings import Settings
from phalanx.errors import RankDied
from phalanx.faults import Kill, Plan
from phalanx.faults.fault_words import say_what_happened
from phalanx.journal.events import FaultStruck
from phalanx.model import Leave, Names, Site
from phalanx.system import monotonic


class FaultsOfCall(FaultCourse):
    """Tells the referee, the journal and the attempts of a script what happens."""

    def __init__(self, plan: Plan, ranks_alive: RankProcesses, settings: Settings) -> None:
        absences, port = _Absences(ranks_alive), ranks_alive.store_port
        super().__init__(plan, ranks_alive.members, absences, self._hear, port)
        self._ranks_alive = ranks_alive
        self._codec = ranks_alive.codec
        self._attempts = settings.attempts
        self._may_start_again = settings.max_restarts > 0
        self._lines: list[tuple[str, str]] = []
        self._sites: dict[int, Site | None] = {}

    def _hear(self, what: Happened) -> None:
        fault = what.fault
        if self._codec is not None:
            how = "ended" if what.ended else "struck"
            where = (monotonic(), what.rank, 0, what.site)
            self._codec.referee.journal.add(FaultStruck(*where, fault.kind, str(fault), how))
        if what.ended:
            return
        words = say_what_happened(fault, "" if what.site is None else str(what.site))
        self._lines.append(("fault", words))
        if self._codec is not None:
            self._codec.fault_lines.append(("fault", words))
        if isinstance(fault, Kill):
            self._sites[fault.rank] = what.site
        if self._attempts is not None:
            self._attempts.happened.add(fault)

    @property
    def lines(self) -> Names:
        """What has happened, for reports."""
        return tuple(self._lines)

    def is_survived(self, rank: int) -> bool:
        """Whether the end of this rank's process is what the plan wants, and no failure. Where
        ranks may start again it is one, as torchrun's agent takes the death of a process; so it
        is if none is left."""
        some_left = len(self.killed) < len(self._ranks_alive.members)
        return rank in self.killed and some_left and not self._may_start_again

    def tell_killed(self, rank: int) -> None:
        if self._codec is not None:
            self._ranks_alive.answer(self._codec.killed(rank, self._sites[rank]))

    def leave_of(self, rank: int) -> Leave | None:
        """Where the plan has killed this rank, if it has."""
        return Leave("killed", self._sites[rank]) if rank in self.killed else None

    def death_of(self, rank: int) -> RankDied | None:
        """How the plan has killed this rank, if it has."""
        kill = self.killed.get(rank)
        if kill is None:
            return None
        site = self._sites[rank]
        last = say_what_happened(kill, "" if site is None else str(site))
        return RankDied(code=-signal.SIGKILL, signal="SIGKILL", last=last)


class _Absences:
    """Tells the referee who is absent, and the ranks that waited for these to go on."""

    def __init__(self, ranks_alive: RankProcesses) -> None:
        self._ranks_alive = ranks_alive

    def leave(self, rank: int) -> None:
        self._change(lambda loose: loose.leave(rank))

    def come_back(self, rank: int) -> None:
        self._change(lambda loose: loose.come_back(rank))

    def cut(self, one: Sequence[int], other: Sequence[int]) -> None:
        self._change(lambda loose: loose.cut(one, other))

    def join(self, one: Sequence[int], other: Sequence[int]) -> None:
        self._change(lambda loose: loose.join(one, other))

    def _change(self, change: Callable[[LooseGroups], None]) -> None:
        codec = self._ranks_alive.codec
        if codec is not None:
            self._ranks_alive.answer(codec.change_loose(change))
