"""What ranks that are threads write into the journal, apart from the hot path of a collective.

Used by the process group, by `work.py` and by whoever takes a message back. `Endpoint._submit`
and `_park_until_done` write their events themselves: there a function call would count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from phalanx import callsite
from phalanx.backend.collectives.call_signature import order_of
from phalanx.core.strand import Strand, here
from phalanx.journal.events import (
    BufferTouched,
    CallId,
    Completed,
    GroupDestroyed,
    GroupMade,
    Met,
    Posted,
    Withdrawn,
    make,
)
from phalanx.matching.slots import Assembly, Call
from phalanx.system import monotonic

if TYPE_CHECKING:
    from phalanx.backend.session import RankContext


def thread_of(strand: Strand | None) -> int:
    """The rank's own thread is 0, its callbacks are 1; threads that it started have a number of
    their own."""
    if strand is None:
        return 0
    return id(strand) if strand.helper else int(strand.on_pending_callback)


def call_id(call: Call) -> CallId:
    assert call.serial is not None
    return call.strand.local.rank, call.serial


def post_message(context: RankContext, call: Call, sample: Tensor) -> None:
    """A send or a receive of this tensor."""
    ring = context.ring
    serial = call.serial = ring.posted
    ring.posted = serial + 1
    tensor = (sample.dtype, sample.shape, sample.device, order_of(sample))
    ring.calls.append(
        Posted(
            monotonic(),
            context.rank,
            thread_of(call.strand),
            call.mark,
            call.assembly.record,
            call.name,
            serial,
            call.member,
            None,
            None,
            call.peer,
            call.tag,
            None,
            True,
            call.batch,
            call.device,
            (call.name, tensor),
        )
    )


def meet_message(send: Call, receive: Call) -> None:
    """A message has found its receive."""
    _flow(send, receive, Met, receive.source)


def complete_message(send: Call, receive: Call, *, failed: bool) -> None:
    _flow(send, receive, Completed, failed)


def _flow(send: Call, receive: Call, kind: type[Any], last: Any) -> None:
    """Written by the rank that runs: it may be any, if data moves later."""
    strand = here.strand or receive.strand
    ring = strand.local.ring
    pair = (call_id(send), call_id(receive))
    rank, thread = strand.local.rank, thread_of(strand)
    record = receive.assembly.record
    ring.flowed += 1
    ring.flow.append(make(kind, (monotonic(), rank, thread, None, record, None, pair, last)))


def withdraw(call: Call) -> bool:
    """Take back a message whose rank gave up waiting; whether there was one."""
    if not call.assembly.withdraw(call):
        return False
    rank, thread = call.strand.local.rank, thread_of(call.strand)
    record = call.assembly.record
    event = Withdrawn(monotonic(), rank, thread, call.mark, record, call_id(call))
    call.strand.local.ring.add(event)
    return True


def group_made(
    context: RankContext, met: Assembly, member: int, *, default: bool, by_program: bool
) -> None:
    context.ring.add(
        GroupMade(
            monotonic(),
            context.rank,
            thread_of(here.strand),
            callsite.mark(2),
            met.record,
            member,
            default,
            by_program,
        )
    )


def group_destroyed(context: RankContext, met: Assembly, *, default: bool) -> None:
    thread, mark = thread_of(here.strand), callsite.mark(2)
    context.ring.add(
        GroupDestroyed(monotonic(), context.rank, thread, mark, met.record, default)
    )


def buffer_touched(context: Any, call: CallId | None, how: str) -> None:
    """A tensor of a call in flight was used, at the line that is running."""
    thread, mark = thread_of(here.strand), callsite.mark(2)
    context.ring.add(BufferTouched(monotonic(), context.rank, thread, mark, call, how))
