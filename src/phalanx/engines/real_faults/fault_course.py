"""A plan of faults in the program, during one call on ranks that are processes.

Used by `engines/processes/call_on_ranks.py`, in the thread that hears the ranks. What strikes
at a moment it carries out itself or has a rank do it; a process that is stopped it wakes up; it
knows which faults go on, and which have happened. The referee is told who is absent, so that
nobody waits there for a rank that the backend will report as lost. Must never judge a run.
"""

from __future__ import annotations

import heapq
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, Protocol

from phalanx.engines.real_faults.cut_traffic import CutTraffic
from phalanx.engines.real_faults.fault_messages import (
    BeginCut,
    CarriedOut,
    Disconnect,
    EndCut,
    FindStores,
    GoOn,
    LoseStores,
    StrikeNow,
    Struck,
)
from phalanx.engines.real_faults.unserved_stores import UnservedStores
from phalanx.errors import PhalanxError
from phalanx.faults import Delay, DropStore, Fault, Kill, Partition, Plan, Stop
from phalanx.faults.point_watch import moments_of
from phalanx.model import Site
from phalanx.system import monotonic


class FaultyProcess(Protocol):
    """A rank's process as the program sees it. `status` is None while it lives."""

    rank: int
    pid: int
    status: int | None

    def send(self, message: Any) -> None: ...


class Absences(Protocol):
    """Who is to know of ranks that others wait for in vain."""

    def leave(self, rank: int) -> None:
        """The rank does nothing for a time."""

    def come_back(self, rank: int) -> None: ...

    def cut(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Nothing arrives between these."""

    def join(self, one: Sequence[int], other: Sequence[int]) -> None: ...


class Happened(NamedTuple):
    """A fault of the plan happens to a rank now, or has `ended`; at a line of the program, if
    the rank has come to one. One that names no rank, or several, stands with the first."""

    fault: Fault
    rank: int
    site: Site | None = None
    ended: bool = False


class FaultCourse:
    """`tell` is called with what happens. The store of the ranks is served in this process, at
    `store_port`; to a partition it is where rank 0 is."""

    def __init__(
        self,
        plan: Plan,
        members: Sequence[FaultyProcess],
        referee: Absences,
        tell: Callable[[Happened], Any],
        store_port: int = 0,
    ) -> None:
        self._plan = plan
        self._members = {member.rank: member for member in members}
        self._referee = referee
        self._tell = tell
        self._store_port = store_port
        self._stores = UnservedStores()
        self._traffic = CutTraffic()
        self.happened: list[Fault] = []
        self.killed: dict[int, Kill] = {}
        """The ranks that the plan has killed, and by which of its faults."""
        self._order = count()
        self._due: list[tuple[float, int, bool, Callable[[], None]]] = []
        """What is to be done when; with True it ends a fault that goes on."""
        self._stopped: dict[int, float] = {}
        """Until when."""
        self._over: set[int] = set()
        """The ranks whose programs are over."""
        self._connected: set[int] = set()
        """Those of them who are connected still."""
        self._awaited: dict[int, tuple[set[int], int | None]] = {}
        """By number: the ranks that lose their stores, and the one that waits for that."""

    def begin(self) -> None:
        """The run begins now."""
        began = monotonic()
        for moment in moments_of(self._plan):
            if not moment.ends:
                self._add(began + moment.seconds, self._starting(moment.fault), ends=False)

    def _starting(self, fault: Fault) -> Callable[[], None]:
        return lambda: self._start(fault)

    def _add(self, when: float, what: Callable[[], None], *, ends: bool = True) -> None:
        heapq.heappush(self._due, (when, next(self._order), ends, what))

    def tick(self) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= monotonic():
            heapq.heappop(self._due)[3]()

    def is_pending(self) -> bool:
        """Whether a fault goes on whose end is known: the run does not stand still."""
        return any(ends for _, _, ends, _ in self._due)

    def seconds_left(self, most: float) -> float:
        """How long nothing is to be done, at most so long."""
        return min(most, max(0.0, self._due[0][0] - monotonic())) if self._due else most

    def end(self) -> None:
        """The run has ended: this process is as before."""
        self._traffic.join_all()

    def wake(self) -> None:
        """The run is about to end: nobody stays stopped."""
        for rank in list(self._stopped):
            self._continue(rank)

    # -- what ranks say ---------------------------------------------------------------------

    def take_in(self, message: Any) -> bool:
        """Whether it was for us."""
        if isinstance(message, Struck):
            self._note(message.fault, message.site)
            _AT_POINT.get(type(message.fault), _nothing)(self, message.fault)
        elif isinstance(message, CarriedOut):
            self._take_done(message)
        else:
            return False
        return True

    def end_program(self, rank: int) -> None:
        """The program of this rank is over. Its process is kept until all are, and yet the
        others are to see that it has ended, if they may wait for it in the backend."""
        self._over.add(rank)
        self._connected.add(rank)
        self._disconnect()

    def _disconnect(self) -> None:
        if any(isinstance(fault, _KEEPING_AWAY) for fault in self.happened):
            for member in self._living(tuple(self._connected)):
                member.send(Disconnect())
            self._connected.clear()

    def lose(self, rank: int) -> None:
        """The rank's process has ended, for whatever reason."""
        self._stopped.pop(rank, None)
        for number in list(self._awaited):
            self._take_done(CarriedOut(rank, number))

    def _note(self, fault: Fault, site: Site | None = None, *, ended: bool = False) -> None:
        self._tell(Happened(fault, min(fault.ranks, default=0), site, ended))
        if not ended:
            self.happened.append(fault)
            self._disconnect()

    # -- what strikes -----------------------------------------------------------------------

    def _start(self, fault: Fault) -> None:
        """Its moment has come. What a rank does is told by the rank."""
        member = self._members[min(fault.ranks, default=0)]
        if isinstance(fault, Partition):
            self._note(fault)
            self._cut(fault)
        elif isinstance(fault, DropStore):
            self._note(fault)
            self._drop(fault)
        elif member.status is not None or member.rank in self._over:
            return  # the rank has ended before
        elif isinstance(fault, (Kill, Stop)):
            self._note(fault)
            _AT_POINT[type(fault)](self, fault)
            if isinstance(fault, Kill):
                _signal(member, signal.SIGKILL)
        else:
            member.send(StrikeNow(fault))

    def _kill(self, fault: Kill) -> None:
        self.killed[fault.rank] = fault
        self._referee.leave(fault.rank)

    def _stop(self, fault: Stop) -> None:
        """A rank that stopped itself might do so after it is woken up."""
        rank, until = fault.rank, monotonic() + fault.seconds
        if rank not in self._stopped:
            self._referee.leave(rank)
        self._stopped[rank] = max(until, self._stopped.get(rank, until))
        self._add(until, lambda: self._end_stop(rank))
        _signal(self._members[rank], signal.SIGSTOP)

    def _end_stop(self, rank: int) -> None:
        if rank in self._stopped and self._stopped[rank] <= monotonic():
            self._continue(rank)

    def _continue(self, rank: int) -> None:
        del self._stopped[rank]
        for member in self._living((rank,)):
            _signal(member, signal.SIGCONT)
            member.send(GoOn())
        self._referee.come_back(rank)

    def _delay(self, fault: Delay) -> None:
        rank = fault.rank
        self._referee.leave(rank)
        self._add(monotonic() + fault.seconds, lambda: self._referee.come_back(rank))

    def _cut(self, fault: Partition) -> None:
        number = next(self._order)
        for mine, theirs in ((fault.one, fault.other), (fault.other, fault.one)):
            pids = tuple(self._members[rank].pid for rank in theirs)
            if 0 in mine:
                self._cut_here(number, pids)
            elif 0 in theirs:
                pids = (*pids, os.getpid())
            for member in self._living(mine):
                member.send(BeginCut(number, pids))
        self._referee.cut(fault.one, fault.other)
        start, end = fault.during
        if end is not None:
            self._add(monotonic() + end - start, lambda: self._join(fault, number))

    def _cut_here(self, number: int, pids: Sequence[int]) -> None:
        try:
            self._traffic.cut(number, pids)
        except OSError as error:
            trouble = f"{type(error).__name__}: {error}"
            raise PhalanxError(f"the program cannot carry out a fault: {trouble}") from None

    def _join(self, fault: Partition, number: int) -> None:
        self._note(fault, ended=True)
        for member in self._living(fault.ranks):
            member.send(EndCut(number))
        self._traffic.join(number)
        self._referee.join(fault.one, fault.other)

    def _drop(self, fault: DropStore) -> None:
        self._stores.lose({self._store_port})
        number = next(self._order)
        living = list(self._living(tuple(self._members)))
        self._awaited[number] = {member.rank for member in living}, fault.rank
        for member in living:
            member.send(LoseStores(number))
        if fault.seconds is not None:
            self._add(monotonic() + fault.seconds, lambda: self._find(fault))

    def _take_done(self, done: CarriedOut) -> None:
        if done.trouble:
            raise PhalanxError(f"rank {done.rank} cannot carry out a fault: {done.trouble}")
        if done.number not in self._awaited:
            return
        ranks, waits = self._awaited[done.number]
        ranks.discard(done.rank)
        if ranks <= self._stopped.keys():
            del self._awaited[done.number]
            if waits is not None:
                self._members[waits].send(GoOn())

    def _find(self, fault: DropStore) -> None:
        self._note(fault, ended=True)
        self._stores.serve_again()
        for member in self._living(tuple(self._members)):
            member.send(FindStores())

    def _living(self, ranks: Sequence[int]) -> Iterator[FaultyProcess]:
        for rank in ranks:
            if self._members[rank].status is None:
                yield self._members[rank]


_KEEPING_AWAY = (Kill, Stop, Delay, Partition)
"""Faults after which a rank may wait in the backend for one that never comes."""


def _signal(member: FaultyProcess, number: int) -> None:
    if member.status is None:
        with suppress(ProcessLookupError):
            os.kill(member.pid, number)


def _nothing(course: FaultCourse, fault: Any) -> None:
    """It is over as soon as it has happened."""


_AT_POINT: dict[type[Fault], Callable[[FaultCourse, Any], None]] = {
    Kill: FaultCourse._kill,
    Stop: FaultCourse._stop,
    Delay: FaultCourse._delay,
    DropStore: FaultCourse._drop,
}
"""What the program does about a fault that strikes in a rank."""
