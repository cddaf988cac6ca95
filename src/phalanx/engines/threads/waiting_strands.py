"""Strands as nodes of the wait graph: who can never move again while others still work.

Used by the referee's host of the threads engine when the monitor looks, every few hundredths
of a second and in the launcher's thread. A strand that has not been given the baton between two
looks is steady; all others count as free.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping, Sequence
from types import FrameType

from phalanx.backend.evidence.call_description import TensorReader, everyone
from phalanx.backend.group_history import CreationWait
from phalanx.backend.session import Session
from phalanx.backend.stores.init_meeting import InitWait
from phalanx.backend.stores.store import StoreWait
from phalanx.core.baton import Baton
from phalanx.core.holding_baton import HoldingBaton
from phalanx.core.strand import DONE, OUTSIDE, PARKED, Strand
from phalanx.emulation.stdlib.blocking import Blocked, is_frame_of_tool, is_idle_worker, is_tool
from phalanx.emulation.stdlib.listening_threads import is_accepting, knows_torch
from phalanx.engines.tests_of_ranks import BetweenTests
from phalanx.matching.descriptions import needs_of
from phalanx.matching.partial_look import Standing, WaitPosition
from phalanx.matching.slots import Call
from phalanx.matching.waitgraph import Node
from phalanx.system import current_frames

SERVES = object()
"""What a thread waits for that serves others: for nothing that a rank does."""


class StrandNodes:
    """The strands of one run as nodes of the wait graph."""

    def __init__(self, session: Session, baton: Baton) -> None:
        self._session = session
        self._baton = baton
        self._apart: dict[Strand, bool] = {}

    def positions(self) -> dict[Strand, WaitPosition]:
        """Where each strand stands that waits without counting on a timer."""
        strands = list(self._baton.strands)
        apart = self.serving(strands)
        return {
            strand: (strand.granted, self._why(strand, apart))
            for strand in strands
            if (strand.state is PARKED and not self._counts_on_time(strand))
            or strand.state is OUTSIDE
        }

    def _counts_on_time(self, strand: Strand) -> bool:
        """With faults the limit of a wait is a way out of it, too."""
        has_limit = strand.limit is not None and isinstance(self._baton, HoldingBaton)
        return bool(strand.timer) or has_limit

    @staticmethod
    def _why(strand: Strand, apart: Container[Strand]) -> object:
        if strand.state is not OUTSIDE:
            return None
        return SERVES if strand in apart else strand.why

    def serving(self, strands: Sequence[Strand], *, anew: bool = False) -> set[Strand]:
        """Threads that serve others and have nothing to do with torch. That takes long to find
        out, so it is kept, unless it is to be found out `anew`."""
        able = [s for s in strands if s.helper and s.state is OUTSIDE and not s.granted]
        frames = _frames_of_others() if able else {}
        found = set()
        for strand in able:
            frame = frames.get(strand.ident)
            if frame is not None and is_accepting(frame):
                if anew or strand not in self._apart:
                    self._apart[strand] = not knows_torch(frame)
                if self._apart[strand]:
                    found.add(strand)
        return found

    def ended(self) -> tuple[int, int]:
        """How many strands have ended, of how many."""
        strands = list(self._baton.strands)
        return sum(strand.state is DONE for strand in strands), len(strands)

    def stand(self, steady: Mapping[Strand, WaitPosition]) -> Standing[Strand] | None:
        """With the states of all strands held still, while the holder runs on."""
        try:
            with self._baton.still():
                return None if self._baton.is_judging() else self._standing(steady)
        except RuntimeError:  # the holder changed a table while it was read
            return None

    def _standing(self, steady: Mapping[Strand, WaitPosition]) -> Standing[Strand]:
        """One node for each thread, then one for each callback that may run in a thread that
        waits."""
        frames = _frames_of_others() if any(s.state is OUTSIDE for s in steady) else {}
        strands = [strand for strand in self._baton.strands if strand.state is not DONE]
        by_thread = {strand.thread: strand for strand in strands if strand.thread is not None}
        reader = TensorReader()
        alone: bool | None = None
        nodes = []
        for strand in strands:
            node = Node(strand.rank, _name(strand), free=True)
            seen = steady.get(strand)
            if seen is not None and seen[0] == strand.granted and not strand.pending_callbacks:
                if strand.state is PARKED:
                    node = self._waiting(node, strand.why, reader)
                elif seen[1] is SERVES:
                    node = node._replace(needs=(strand.rank,), free=False)
                elif strand.state is OUTSIDE:
                    if alone is None:
                        alone = self._is_alone(strands)
                    node = self._blocked(node, strand, by_thread, alone, frames)
            nodes.append(node)
        unseen = any(
            s.state is OUTSIDE and not node.free for s, node in zip(strands, nodes, strict=True)
        )
        for met in list(self._session.mailboxes.values()):
            for call in met.open_calls():
                if call.callbacks:
                    node = Node(met.ranks[call.member], "of a callback")
                    nodes.append(self._waiting(node, call, reader))
        parked = frozenset(strand for strand in strands if strand.state is PARKED)
        return Standing(strands, nodes, parked, unseen)

    def _waiting(self, node: Node, why: object, reader: TensorReader) -> Node:
        if isinstance(why, StoreWait):
            needs, any_of = everyone(self._session.size), True
        elif isinstance(why, Call):
            needs, any_of = needs_of(why, reader)
        elif isinstance(why, CreationWait):
            needs, any_of = why.needs(), False
        elif isinstance(why, InitWait):
            needs, any_of = why.needs()
        elif isinstance(why, BetweenTests):
            needs, any_of = why.missing(), False
        else:
            return node._replace(free=True)
        return node._replace(needs=needs, any_of=any_of, free=not (needs or any_of))

    def _blocked(
        self,
        node: Node,
        strand: Strand,
        by_thread: Mapping[threading.Thread, Strand],
        alone: bool,
        frames: Mapping[int, FrameType],
    ) -> Node:
        why = strand.why
        joined = by_thread.get(why.thread) if isinstance(why, Blocked) and why.thread else None
        if joined is not None:
            return node._replace(joins=_name(joined), free=False)
        waits = isinstance(why, Blocked) and why.is_waiting is not None and why.is_waiting()
        if alone and (waits or is_idle_worker(strand.thread, frames.get(strand.ident))):
            everybody = everyone(self._session.size)
            return node._replace(needs=everybody, any_of=True, free=False)
        return node

    def _is_alone(self, strands: Sequence[Strand]) -> bool:
        """Whether no thread that is nobody's could notify a rank."""
        ours = {strand.ident for strand in strands} | {threading.get_ident()}
        known = {thread.ident: thread for thread in threading.enumerate()}
        frames = _frames_of_others()
        others = (known.keys() | frames.keys()) - ours
        return all(
            is_tool(known[ident]) or is_idle_worker(known[ident], frames.get(ident or 0))
            if ident in known
            else is_frame_of_tool(frames[ident or 0])
            for ident in others
        )


def _frames_of_others() -> dict[int, FrameType]:
    """Without the caller's own, which would hold the table that holds it, and with it
    everything that the ranks have in their frames."""
    frames = current_frames()
    frames.pop(threading.get_ident(), None)
    return frames


def _name(strand: Strand) -> str | None:
    if not strand.helper:
        return None
    return (
        f"{strand.thread.name}/{strand.ident}"
        if strand.thread is not None
        else "callback_thread"
    )
