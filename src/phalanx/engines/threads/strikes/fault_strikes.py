"""Lets the faults of a plan happen in a run on threads.

Points come from the ranks (`rank_strikes.py`), in their own threads; moments from the clock, in
whichever thread looks at it. What the injured rank meets with is decided here: it ends, sleeps,
stands still or raises. What the other ranks see is `backend/losses/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from phalanx import callsite
from phalanx.backend import losses
from phalanx.backend.session import Session
from phalanx.backend.stores.store import holding_baton
from phalanx.callsite import Mark
from phalanx.core.choices import Step
from phalanx.core.holding_baton import HoldingBaton
from phalanx.core.launcher import throw_into
from phalanx.core.strand import DONE, OUTSIDE, PARKED, READY, RUNNING, Strand, here, thread_of
from phalanx.emulation.stdlib.blocking import Blocked
from phalanx.emulation.stdlib.rank_children import kill_processes
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.strikes.rank_strikes import RankStrikes
from phalanx.engines.threads.strikes.rank_unwinding import Killed
from phalanx.engines.threads.strikes.struck_group import StruckGroup
from phalanx.faults import Corrupt, Delay, DropStore, Fault, Kill, Partition, Raise, Stop
from phalanx.faults.fault_words import say_what_happened
from phalanx.faults.point_watch import Moment, moments_of
from phalanx.journal.events import FaultStruck
from phalanx.model import Site
from phalanx.system import current_frames


class FaultStrikes:
    """Of one run."""

    def __init__(self, settings: Settings, session: Session, baton: HoldingBaton) -> None:
        self._settings = settings
        self._session = session
        self._baton = baton
        self.killed: dict[int, Site | None] = {}
        """The ranks that were killed, and their lines."""
        self.deaths: dict[int, str] = {}
        """How that happened, in words."""
        session.fault_lines.clear()
        session.happened.clear()
        session.group_class = StruckGroup
        session.losses = None
        losses.begin_losses(session)
        named = {rank for fault in settings.faults for rank in fault.ranks}
        for rank in named:
            session.ranks[rank].strikes = RankStrikes(
                settings.faults, rank, self.strike, time_passes=not baton.clock.jumps
            )

    def begin(self) -> None:
        """The clock of the run starts."""
        start = self._baton.clock.now()
        for moment in moments_of(self._settings.faults):
            self._baton.call_at(start + moment.seconds, partial(self._at_moment, moment))

    def end(self) -> None:
        for context in self._session.ranks:
            context.strikes = None

    # -- a point of a rank, in one of its threads ------------------------------------------

    def strike(self, fault: Fault, strand: Strand) -> None:
        """In a run that is explored, others may come first."""
        mark = callsite.mark(2)
        with holding_baton(strand):
            if self._baton.choices is not None:
                step = Step(fault.kind, ("fault", strand.rank), writes=True, mark=mark)
                self._baton.make_step(strand, step)
            self._note(fault, strand.rank, mark)
            _IN_RANK[type(fault)](self, fault, strand)

    def _kill_here(self, fault: Kill, strand: Strand) -> None:
        self._kill(fault, strand)
        raise Killed

    def _delay_here(self, fault: Delay, strand: Strand) -> None:
        self._baton.sleep(strand, fault.seconds, Blocked("a delay of the plan"))

    def _stop_here(self, fault: Stop, strand: Strand) -> None:
        self._baton.hold(strand.rank, fault.seconds)
        self._baton.give_way(strand)

    def _raise_here(self, fault: Raise, strand: Strand) -> None:
        raise fault.make_error()

    def _drop_store(self, fault: DropStore, strand: Strand | None) -> None:
        losses.lose_store(self._session)
        if fault.seconds is not None:
            until = self._baton.clock.now() + fault.seconds
            self._baton.call_at(until, partial(self._restore_store, fault))

    def _corrupt(self, fault: Corrupt, strand: Strand) -> None:
        how = {"bits": fault.bits, "part": fault.part, "seed": fault.seed}
        losses.corrupt_call(self._session, strand.rank, **how)  # type: ignore[arg-type]

    # -- a moment, in any thread, with the baton's mutex ------------------------------------

    def _at_moment(self, moment: Moment) -> None:
        fault = moment.fault
        if all(strand.state is DONE for strand in self._main_strands()):
            return
        if isinstance(fault, Partition):
            self._note(fault, min(fault.ranks), None, ends=moment.ends)
            change = losses.heal if moment.ends else losses.partition
            change(self._session, fault.one, fault.other)
        elif isinstance(fault, DropStore):
            self._note(fault, 0, None)
            self._drop_store(fault, None)
        else:
            self._strike_from_outside(fault)

    def _strike_from_outside(self, fault: Fault) -> None:
        """The rank waits, or is ready to go on. One that computes, or has not begun, comes to
        it by itself."""
        (rank,) = fault.ranks
        strikes: RankStrikes = self._session.ranks[rank].strikes
        strand = next(each for each in self._main_strands() if each.rank == rank)
        if strand.state is DONE or strikes.is_dead:
            return
        if strand.state is RUNNING or not strand.granted:
            strikes.due.append(fault)
            return
        self._note(fault, rank, _mark_of(strand))
        if isinstance(fault, Kill):
            self._kill(fault, strand)
            _end_wait(strand, Killed)
        elif isinstance(fault, Raise):
            _end_wait(strand, fault.make_error())
        elif isinstance(fault, (Delay, Stop)):
            whole = isinstance(fault, Stop)
            self._baton.hold(rank if whole else strand, fault.seconds)

    def _restore_store(self, fault: DropStore) -> None:
        self._note(fault, 0 if fault.rank is None else fault.rank, None, ends=True)
        losses.restore_store(self._session)

    # -- inside ---------------------------------------------------------------------------

    def _kill(self, fault: Kill, by: Strand) -> None:
        """All of the rank but this thread, which sees to itself."""
        rank = fault.rank
        context = self._session.ranks[rank]
        context.strikes.is_dead = True
        self._baton.bury(rank)
        kill_processes(context)
        for strand in list(self._baton.strands):
            if strand.rank == rank and strand is not by:
                _end_wait(strand, Killed)
        losses.lose_rank(self._session, rank)

    def _main_strands(self) -> list[Strand]:
        return [strand for strand in self._baton.strands if not strand.helper]

    def _note(self, fault: Fault, rank: int, mark: Mark | None, *, ends: bool = False) -> None:
        session = self._session
        how = "ended" if ends else "struck"
        thread = thread_of(here.strand) if mark is not None else 0
        where = (session.now(), rank, thread, mark)
        session.journal.add(FaultStruck(*where, fault.kind, str(fault), how))
        if ends:
            return
        site = callsite.resolve(mark)
        words = say_what_happened(fault, "" if site is None else str(site))
        if isinstance(fault, Kill):
            self.killed[rank], self.deaths[rank] = site, words
        session.fault_lines.append(("fault", words))
        session.happened.append(str(fault))
        if self._settings.attempts is not None:
            self._settings.attempts.happened.add(fault)


_IN_RANK: Mapping[type[Fault], Callable[[FaultStrikes, Any, Strand], None]] = {
    Kill: FaultStrikes._kill_here,
    Delay: FaultStrikes._delay_here,
    Stop: FaultStrikes._stop_here,
    Raise: FaultStrikes._raise_here,
    DropStore: FaultStrikes._drop_store,
    Corrupt: FaultStrikes._corrupt,
}


def _end_wait(strand: Strand, error: Any) -> None:
    """Let it raise this, which may be a class, in its own thread as soon as it can."""
    if strand.state in (PARKED, READY):
        strand.error = error
        strand.baton.wake(strand)
    elif strand.state is OUTSIDE and not strand.helper:
        strand.error = error
    elif strand.state is not DONE and strand.ident:
        throw_into(strand.ident, error)


def _mark_of(strand: Strand) -> Mark | None:
    why = getattr(strand.why, "mark", None)
    if why is not None:
        found: Mark = why
        return found
    return callsite.mark_of(current_frames().get(strand.ident))
