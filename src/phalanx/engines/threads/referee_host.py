"""The referee's host in the threads engine: when it is asked, and how ranks are told.

The baton calls `judge_stuck` when nobody can move, the monitor calls `look` while somebody can.
What the referee finds becomes an error in every rank that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from phalanx.backend.call_events import withdraw
from phalanx.backend.evidence.call_description import describe_call
from phalanx.backend.evidence.call_history import RankEvidence
from phalanx.backend.group_history import CreationWait
from phalanx.backend.session import Session
from phalanx.core.baton import Baton
from phalanx.core.strand import DONE, OUTSIDE, PARKED, Strand
from phalanx.engines.outcome import Outcomes
from phalanx.engines.snapshots import (
    group_views,
    take_snapshot,
    thread_name,
    thread_places,
    user_stacks,
)
from phalanx.engines.threads.waiting_strands import SERVES, StrandNodes
from phalanx.errors import VerdictError
from phalanx.matching.partial_look import Standing, WaitPosition
from phalanx.matching.slots import Call
from phalanx.model import Op, Snapshot, Stall, Verdict
from phalanx.system import monotonic, without_collection

AT_FAULT = ("outside", "computing", "lingering")
"""What ranks do that keep a run from ending."""

GRACE = 0.25
"""Seconds that a rank may go on computing, and so keep the others from raising what was found
out about them, before the run is stopped."""


MOST_PENDING = 4


class Judge(RankEvidence):
    """The referee's host in the threads engine, and its messenger."""

    def __init__(self, session: Session, baton: Baton, outcomes: Outcomes) -> None:
        super().__init__(session.ranks)
        self._session = session
        self._baton = baton
        self._outcomes = outcomes
        self._nodes = StrandNodes(session, baton)
        session.referee.begin()
        self._dead: set[Call] = set()
        self._told: tuple[float, int, VerdictError] | None = None

    def judge_stuck(self) -> None:
        """No rank can move: find out why, and raise it in every rank that waits."""
        session = self._session
        error = without_collection(
            lambda: session.report(session.referee.find_verdict(self) or self.stalled(0.0))
        )
        parked = [strand for strand in self._baton.strands if strand.state is PARKED]
        for strand, own in zip(parked, error.for_each(len(parked)), strict=True):
            self._baton.wake(strand, own)
        session.referee.abandon(error)

    def look(self) -> None:
        """While others move: called by the monitor."""
        if self._told is None:
            stuck = self._session.referee.find_stuck(self, monotonic())
            if stuck:
                self._condemn(stuck)
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
        if isinstance(why, CreationWait):
            why.end()
        if isinstance(why, Call) and why in self._dead:
            self._dead.discard(why)
            why.waited = True
            withdraw(why)

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
            for met in self._session.mailboxes.values()
            for call in met.open_calls()
            if call.asynchronous and not call.done and met.ranks[call.member] in ranks
        ]
        return tuple(describe_call(call) for call in calls[:MOST_PENDING])

    def _condemn(self, stuck: Mapping[Strand, WaitPosition]) -> None:
        """These can never move, though others do."""
        referee = self._session.referee
        verdict = without_collection(lambda: referee.find_verdict(self, list(stuck)))
        if verdict is None:
            return
        serving = self._nodes.serving(list(self._baton.strands), anew=True)
        if any(at[1] is SERVES and strand not in serving for strand, at in stuck.items()):
            return  # it has left that place, or its modules know torch by now
        error = self._session.report(_with_serving(verdict, serving))
        doomed = [(s, at[0]) for s, at in stuck.items() if s.state in (PARKED, OUTSIDE)]
        if not doomed:
            return  # meanwhile the last rank has parked, and all were told
        errors = error.for_each(len(doomed))
        self._dead.update(s.why for s, _ in doomed if isinstance(s.why, Call))
        self._told = monotonic(), self._baton.hand_overs, error
        self._baton.condemn([(*each, own) for each, own in zip(doomed, errors, strict=True)])

    # -- what the referee asks ------------------------------------------------------------

    def positions(self) -> dict[Strand, WaitPosition]:
        return self._nodes.positions()

    def ended_so_far(self) -> tuple[int, int]:
        return self._nodes.ended()

    def stand(self, steady: Mapping[Strand, WaitPosition]) -> Standing[Strand] | None:
        return self._nodes.stand(steady)

    def calls_of(self, stuck: Sequence[Strand]) -> list[Call]:
        return [strand.why for strand in stuck if isinstance(strand.why, Call)]

    def ended(self) -> set[int]:
        return {s.rank for s in self._baton.strands if s.state is DONE and not s.helper}

    def take_snapshot(self, stuck: Sequence[Strand] | None) -> Snapshot:
        lost = None if stuck is None else set(stuck)
        return take_snapshot(self._session, self._baton, self._outcomes, stuck=lost)


def _with_serving(verdict: Verdict, serving: Iterable[Strand]) -> Verdict:
    """With what the proof takes for granted of threads that are out of sight."""
    told = [
        f"thread {thread_name(strand)} of rank {strand.rank} waits in accept() for a "
        "connection; it has never called torch.distributed, nor do its modules know torch"
        for strand in sorted(serving, key=lambda each: each.rank)
    ]
    beside = (("beside", text) for text in told[:MOST_PENDING])
    return replace(verdict, names=(*verdict.names, *beside))
