"""What the threads engine concludes when ranks cannot move, and how they are told.

Used by `threads_engine.py`. The baton calls `judge_stuck` when nobody can move, the monitor
calls `look` while somebody can. Evidence is gathered here, decided in `checks/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.backend.evidence.call_description import describe_call
from phalanx.backend.evidence.call_history import with_parting
from phalanx.backend.group_history import find_open_mismatch
from phalanx.backend.meeting_checks import find_slot_mismatch
from phalanx.backend.session import Session
from phalanx.core.baton import Baton
from phalanx.core.strand import DONE, OUTSIDE, PARKED, Strand
from phalanx.engines.outcome import Outcomes
from phalanx.engines.snapshots import group_views, take_snapshot, thread_places, user_stacks
from phalanx.engines.threads.partial_deadlock import PartialWatch
from phalanx.errors import VerdictError
from phalanx.matching.other_group import find_other_group
from phalanx.matching.slots import Assembly, Call, Slot
from phalanx.matching.waitgraph import find_deadlock
from phalanx.model import Deadlock, Op, Snapshot, Stall, Verdict
from phalanx.system import monotonic, without_collection

AT_FAULT = ("outside", "computing", "lingering")
"""What ranks do that keep a run from ending."""

GRACE = 0.25
"""Seconds that a rank may go on computing, and so keep the others from raising what was found
out about them, before the run is stopped."""


MOST_PENDING = 4


class Judge:
    def __init__(self, session: Session, baton: Baton, outcomes: Outcomes) -> None:
        self._session = session
        self._baton = baton
        self._outcomes = outcomes
        self._watch: PartialWatch | None = None
        self._dead: set[Call] = set()
        self._told: tuple[float, int, VerdictError] | None = None

    def judge_stuck(self) -> None:
        """No rank can move: find out why, and raise it in every rank that waits."""
        error = without_collection(
            lambda: self._session.report(self._find_verdict() or self.stalled(0.0))
        )
        parked = [strand for strand in self._baton.strands if strand.state is PARKED]
        for strand, own in zip(parked, error.for_each(len(parked)), strict=True):
            self._baton.wake(strand, own)
        for met in self._session.assemblies.values():
            met.abandon(error)

    def look(self) -> None:
        """While others move: called by the monitor."""
        if self._told is None:
            if self._watch is None:  # most runs are over before anybody looks
                self._watch = PartialWatch(self._session, self._baton, self._condemn)
            self._watch.look()
            return
        since, hand_overs, error = self._told
        if self._baton.hand_overs != hand_overs:
            self._told = None
        elif monotonic() - since > GRACE:
            self._told = None
            verdict = error.verdict
            rank = min(verdict.ranks, default=0) if verdict is not None else 0
            self._outcomes.record(rank, error, stopping=False)
            self._baton.stop()

    def forget(self, why: object) -> None:
        """A rank gives up what it waited for: nobody is to meet its message any more."""
        if isinstance(why, Call) and why in self._dead:
            self._dead.discard(why)
            why.waited = True
            why.assembly.withdraw(why)

    def stalled(self, seconds: float, *, over_limit: bool = False) -> Stall:
        snapshot = take_snapshot(self._session, self._baton, self._outcomes)
        at_fault = tuple(v.rank for v in snapshot.ranks if v.status in AT_FAULT)
        return Stall(
            kind="stall",
            severity="error",
            ranks=at_fault,
            seconds=seconds,
            blocks=group_views(list(snapshot.ranks)),
            stacks=user_stacks(self._baton),
            over_limit=over_limit,
            pending=self._pending(at_fault),
            threads=thread_places(self._session),
        )

    def _pending(self, ranks: Sequence[int]) -> tuple[Op, ...]:
        """What these have begun and may be polling for."""
        calls = [
            call
            for met in self._session.assemblies.values()
            for call in met.open_calls()
            if call.asynchronous and not call.done and met.ranks[call.member] in ranks
        ]
        return tuple(describe_call(call) for call in calls[:MOST_PENDING])

    def _condemn(self, stuck: Sequence[tuple[Strand, int]]) -> None:
        """These can never move, though others do."""
        strands = [strand for strand, _ in stuck]
        verdict = without_collection(lambda: self._find_verdict(strands))
        if verdict is None:
            return
        error = self._session.report(verdict)
        doomed = [each for each in stuck if each[0].state in (PARKED, OUTSIDE)]
        if not doomed:
            return  # meanwhile the last rank has parked, and all were told
        errors = error.for_each(len(doomed))
        self._dead.update(s.why for s, _ in doomed if isinstance(s.why, Call))
        self._told = monotonic(), self._baton.hand_overs, error
        self._baton.condemn([(*each, own) for each, own in zip(doomed, errors, strict=True)])

    def _find_verdict(self, stuck: Sequence[Strand] | None = None) -> Verdict | None:
        """Calls that disagree explain a deadlock better than who waits for whom. `stuck` are
        those who can never move, where others can."""
        session = self._session
        comparing = "mismatch" in session.kinds
        if comparing:
            for slot in self._open_slots(stuck):
                verdict = find_slot_mismatch(slot) if slot.clash else None
                if verdict is not None:
                    return with_parting(session, verdict, verdict.group.ranks)
            made = find_open_mismatch(session, self._strangers(stuck))
            if made is not None:
                return made
        lost = None if stuck is None else set(stuck)
        snapshot = take_snapshot(session, self._baton, self._outcomes, stuck=lost)
        if comparing:
            other = self._find_other_group(snapshot)
            if other is not None:
                return other
        deadlock = find_deadlock(snapshot, partial=stuck is not None)
        if deadlock is None:
            return None
        ended = [view.rank for view in snapshot.ranks if view.status == "finished"]
        return with_parting(session, deadlock, _concerned(deadlock), ended)

    def _find_other_group(self, snapshot: Snapshot) -> Verdict | None:
        views = (*snapshot.ranks, *snapshot.threads)
        waits = [view.wait for view in views if view.wait and view.status == "waiting"]
        sends = [
            describe_call(send)
            for met in list(self._session.assemblies.values())
            for sent in list(met.sends.values())
            for send in sent
        ]
        gone = [view.rank for view in snapshot.ranks if view.status == "finished"]
        return find_other_group(waits, sends, gone)

    def _strangers(self, stuck: Sequence[Strand] | None) -> list[int]:
        """Ranks that have returned and that others wait for in groups these never made."""
        if not self._session.makings:
            return []
        waited = {
            met.ranks[member]
            for met, slot in self._open_places(stuck)
            for member, there in enumerate(slot.calls)
            if there is None and not met.has_member(member)
        }
        return [s.rank for s in self._baton.strands if s.state is DONE and s.rank in waited]

    def _open_slots(self, stuck: Sequence[Strand] | None) -> Iterable[Slot]:
        return (slot for _, slot in self._open_places(stuck))

    def _open_places(self, stuck: Sequence[Strand] | None) -> Iterable[tuple[Assembly, Slot]]:
        if stuck is None:
            for met in self._session.assemblies.values():
                yield from ((met, slot) for slot in met.slots.values())
            return
        seen: set[int] = set()
        for call in (strand.why for strand in stuck if isinstance(strand.why, Call)):
            slot = call.assembly.slots.get(call.number) if call.number is not None else None
            if slot is not None and id(slot) not in seen:
                seen.add(id(slot))
                yield call.assembly, slot


def _concerned(deadlock: Deadlock) -> list[int]:
    """Whose ways are compared: those who wait, and those who have returned."""
    ranks = {
        rank
        for block in deadlock.blocks
        if block.view.status in ("waiting", "finished")
        for rank in block.ranks
    }
    return sorted(ranks)
