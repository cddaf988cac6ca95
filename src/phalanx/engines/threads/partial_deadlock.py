"""Find ranks that can never move again while others still work.

The monitor calls `look` every few hundredths of a second, in the launcher's thread. Nothing
is done on the path of a call: a strand that has not been given the baton between two looks
is *steady*, and only a new set of steady strands is worth a judgement. That happens with the
states of all strands held still, while the holder runs on; it is exact all the same, because
whoever runs counts as free, what a wait needs only ever becomes less, and ranks that need
only each other stay as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from phalanx.backend.evidence.call_description import TensorReader, everyone
from phalanx.backend.group_history import CreationWait
from phalanx.backend.session import Session
from phalanx.backend.stores.store import StoreWait
from phalanx.core.baton import Baton
from phalanx.core.strand import DONE, OUTSIDE, PARKED, Strand
from phalanx.emulation.stdlib.blocking import Blocked, is_frame_of_tool, is_idle_worker, is_tool
from phalanx.matching.descriptions import needs_of
from phalanx.matching.slots import Call
from phalanx.matching.waitgraph import Node, find_stuck
from phalanx.system import current_frames, monotonic

SETTLED = 0.5
"""Seconds that a set must stay the same if it rests on threads that wait out of our sight: a
thread that was given work may take a while until it shows."""

_Seen = tuple[int, object]


class PartialWatch:
    """`on_found` is told the strands that can never move, each with its last turn."""

    def __init__(
        self,
        session: Session,
        baton: Baton,
        on_found: Callable[[Sequence[tuple[Strand, int]]], None],
    ) -> None:
        self._session = session
        self._baton = baton
        self._on_found = on_found
        self._seen: dict[Strand, _Seen] = {}
        self._judged: object = None
        self._since = 0.0

    def look(self) -> None:
        before, self._seen = self._seen, _positions(self._baton)
        steady = {s: seen for s, seen in self._seen.items() if _is_same(before.get(s), seen)}
        if not steady:
            return
        strands = self._baton.strands
        ended = sum(strand.state is DONE for strand in list(strands))
        key = ended, len(strands), [(id(s), seen[0], id(seen[1])) for s, seen in steady.items()]
        if key != self._judged:
            self._judged, self._since = key, monotonic()
        elif not self._since:
            return
        if self._judge(steady):
            self._since = 0.0

    def _judge(self, steady: Mapping[Strand, _Seen]) -> bool:
        """Whether the last word is spoken about this set."""
        try:
            with self._baton.still():
                if self._baton.is_judging():
                    return False
                strands, nodes, unseen = self._nodes(steady)
        except RuntimeError:  # the holder changed a table while it was read
            return False
        stuck = [strands[at] for at in find_stuck(nodes) if at < len(strands)]
        if not any(strand.state is PARKED for strand in stuck):
            return True
        if unseen and monotonic() - self._since < SETTLED:
            return False
        self._on_found([(strand, steady[strand][0]) for strand in stuck])
        return True

    def _nodes(self, steady: Mapping[Strand, _Seen]) -> tuple[list[Strand], list[Node], bool]:
        """One node for each thread, then one for each callback that may run in a thread that
        waits; and whether some of it rests on threads out of sight."""
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
                elif strand.state is OUTSIDE:
                    if alone is None:
                        alone = self._is_alone(strands)
                    node = self._blocked(node, strand, by_thread, alone, frames)
            nodes.append(node)
        unseen = any(
            s.state is OUTSIDE and not node.free for s, node in zip(strands, nodes, strict=True)
        )
        for met in list(self._session.assemblies.values()):
            for call in met.open_calls():
                if call.callbacks:
                    node = Node(met.ranks[call.member], "of a callback")
                    nodes.append(self._waiting(node, call, reader))
        return strands, nodes, unseen

    def _waiting(self, node: Node, why: object, reader: TensorReader) -> Node:
        if isinstance(why, StoreWait):
            needs, any_of = everyone(self._session.size), True
        elif isinstance(why, Call):
            needs, any_of = needs_of(why, reader)
        elif isinstance(why, CreationWait):
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


def _positions(baton: Baton) -> dict[Strand, _Seen]:
    """Where each strand stands that waits without counting on a timer."""
    return {
        strand: (strand.granted, strand.why if strand.state is OUTSIDE else None)
        for strand in list(baton.strands)
        if (strand.state is PARKED and not strand.timer) or strand.state is OUTSIDE
    }


def _is_same(before: _Seen | None, now: _Seen) -> bool:
    return before is not None and before[0] == now[0] and before[1] is now[1]
