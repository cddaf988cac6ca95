"""Thread race: a thread calls on a group while another of its rank is inside a call there.

`check` is called for calls of ranks that have threads, and for those of callbacks. Threads that
run pending callbacks of another one (`engines/threads/threads_engine.py`: callback threads)
stand for that one. A call of the program may be several of ours (`all_gather_object`), so what
counts is where the other thread stands: still in torch's code, below the line that made its
last call.

Who comes first is chance, and calls that are over tell nothing. So for a moment a rank with a
young thread is held before its first calls: if the thread comes to the same group meanwhile,
neither waits for the other, whatever locks and queues there are.
"""

from __future__ import annotations

import sys
from types import FrameType

from phalanx import callsite
from phalanx.backend.evidence.call_description import describe_call
from phalanx.backend.session import RankContext
from phalanx.checks.thread_race import ThreadCall, find_thread_race
from phalanx.core.strand import OUTSIDE, PARKED, READY, Strand
from phalanx.errors import RankStopped, VerdictError
from phalanx.matching.slots import Call
from phalanx.model import Finding
from phalanx.system import current_frames

KIND = "thread-race"
_BLOCKING = frozenset({"send", "recv"})
"""Torch's functions for messages that come back when the message is through."""


HOLDS = 2
HOLD, SLICE = 0.01, 0.002
"""How often a thread makes others of its rank wait for it, for how long, and in what steps."""
MOST_HELD = 8
"""How many threads of a rank this is done for: they may be savers and loaders, a new one in
every step, that never call."""


def check(call: Call) -> None:
    """Raise if the call, which has not met the others yet, races with one of its rank."""
    strand = call.strand
    context = strand.local
    if KIND not in context.session.kinds or strand in context.callback_threads:
        return
    if strand.on_pending_callback:
        _check_pending_callback(call)
        return
    _hold(call)
    for other, held in list(context.held.items()):
        if held.mailbox is call.mailbox:
            _judge(call, other, held)
    is_message = call.name in _BLOCKING
    for other in _others(strand):
        inside = _message_of(other, call) if is_message else _collective_of(other, call)
        if inside is not None:
            _judge(call, other, inside)


def _others(strand: Strand) -> list[Strand]:
    """Threads of the same rank that act for themselves."""
    context = strand.local
    return [
        other
        for other in strand.baton.strands
        if other.local is context
        and other is not strand
        and other not in context.callback_threads
    ]


def _hold(call: Call) -> None:
    """See whether a young thread comes to the same place, unless one is held there already."""
    strand = call.strand
    context, baton = strand.local, strand.baton
    if context.held or baton.clock.jumps:
        return
    holds = context.holds
    if len(holds) >= MOST_HELD:
        return
    young = [other for other in _others(strand) if other.helper]
    young = [other for other in young if holds.get(id(other), 0) < HOLDS]
    for other in young:
        holds[id(other)] = holds.get(id(other), 0) + 1
    context.held[strand] = call
    try:
        left = HOLD
        while left > 0 and any(other.state in (OUTSIDE, READY) for other in young):
            baton.sleep(strand, SLICE)
            left -= SLICE
    finally:
        del context.held[strand]


def _check_pending_callback(call: Call) -> None:
    """A callback of a future calls on a group while its rank is inside a call there. Elsewhere
    callbacks run in threads of their own, so nothing orders the two."""
    inside = call.strand.inside
    if inside is None or inside.mailbox is not call.mailbox:
        return
    if call.name not in _BLOCKING and _is_still_at(_beneath(sys._getframe()), inside.mark):
        finding = find_thread_race(
            ThreadCall(describe_call(call), main=False, callback=True),
            ThreadCall(describe_call(inside), main=True),
        )
        if finding is not None:
            raise _told(call.strand.local, finding)


def _collective_of(other: Strand, call: Call) -> Call | None:
    """The synchronous collective on the same group that a thread is inside of."""
    inside: Call | None = other.inside
    if inside is None or inside.mailbox is not call.mailbox:
        return None
    is_parked = other.state is PARKED and other.why is inside
    return inside if is_parked or _is_still_at(_frame_of(other), inside.mark) else None


def _message_of(other: Strand, call: Call) -> Call | None:
    """The message to or from the same peer, with the same tag, that a thread is inside of."""
    why: object = other.why
    if not isinstance(why, Call) or why.mailbox is not call.mailbox:
        return None
    if (why.name, why.peer, why.tag) != (call.name, call.peer, call.tag):
        return None
    frame = _frame_of(other)
    return why if _is_blocking(frame) and _is_still_at(frame, why.mark) else None


def _frame_of(strand: Strand) -> FrameType | None:
    return current_frames().get(strand.ident)


def _is_still_at(frame: FrameType | None, mark: callsite.Mark | None) -> bool:
    """Whether a thread is in library code, called from the place of the mark."""
    below = False
    while frame is not None:
        if not callsite.is_library(frame.f_code.co_filename):
            return below and mark == (frame.f_code, frame.f_lasti)
        below = True
        frame = frame.f_back
    return False


def _beneath(frame: FrameType | None) -> FrameType | None:
    """Where library code has called the program's callback from."""
    while frame is not None and callsite.is_library(frame.f_code.co_filename):
        frame = frame.f_back
    while frame is not None and not callsite.is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_blocking(frame: FrameType | None) -> bool:
    """Whether a thread waits in `dist.send` or `dist.recv`, and not in a `wait` of its own."""
    while frame is not None and callsite.is_library(frame.f_code.co_filename):
        code = frame.f_code
        if code.co_name in _BLOCKING and code.co_filename.endswith("distributed_c10d.py"):
            return True
        frame = frame.f_back
    return False


def _judge(call: Call, other: Strand, inside: Call) -> None:
    strand = call.strand
    finding = find_thread_race(
        ThreadCall(describe_call(call), main=not strand.helper),
        ThreadCall(describe_call(inside), main=not other.helper),
    )
    if finding is None:
        return
    if not strand.helper or strand.local.tell_failure is None:
        raise strand.local.session.report(finding)
    _told(strand.local, finding)
    raise RankStopped


def _told(context: RankContext, finding: Finding) -> VerdictError:
    """For threads and callbacks, where an exception may be kept or printed, and forgotten."""
    error = context.session.report(finding)
    if context.tell_failure is not None:
        context.tell_failure(error)
    return error
