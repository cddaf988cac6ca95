"""What ranks that are threads write into the journal, apart from the hot path of a collective.

Used by the process group, by `work.py` and by whoever takes a message back. `Endpoint._submit`
and `_park_until_done` write their events themselves: there a function call would count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from phalanx import callsite
from phalanx.backend.collectives.call_signature import order_of
from phalanx.backend.stores.store_keys import store_fields
from phalanx.core.strand import Strand, here, thread_of
from phalanx.journal.events import (
    KINDS,
    CallId,
    Completed,
    GroupDestroyed,
    GroupMade,
    Met,
    Posted,
    Withdrawn,
    make,
)
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.slots import Call, finish_all

if TYPE_CHECKING:
    from phalanx.backend.session import RankContext


def call_id(call: Call) -> CallId:
    assert call.serial is not None
    return call.strand.local.rank, call.serial


def post_message(context: RankContext, call: Call, sample: Tensor) -> Posted:
    """A send or a receive of this tensor."""
    ring = context.ring
    serial = call.serial = ring.posted
    ring.posted = serial + 1
    tensor = (sample.dtype, sample.shape, sample.device, order_of(sample))
    event = Posted(
        context.now(),
        context.rank,
        thread_of(call.strand),
        call.mark,
        call.mailbox.record,
        call.name,
        serial,
        call.member,
        peer=call.peer,
        tag=call.tag,
        asynchronous=call.asynchronous,
        batch=call.batch,
        device=call.device,
        signature=(call.name, tensor),
    )
    ring.calls.append(event)
    return event


def meet_message(send: Call, receive: Call) -> Met:
    """A message has found its receive."""
    found: Met = _flow(send, receive, Met, receive.source)
    return found


def complete_message(send: Call, receive: Call, errors: Sequence[Exception] | None) -> None:
    """Its data is there, or it ends with these errors."""
    _flow(send, receive, Completed, errors is not None)
    send.finish(errors[0] if errors else None)
    receive.finish(errors[1] if errors else None)


def complete_collective(calls: Sequence[Call]) -> None:
    """Its data is there."""
    last = calls[-1]
    context = (here.strand or last.strand).local
    record = last.mailbox.record
    context.ring.flowed += 1
    event = (context.now(), context.rank, 0, None, record, last.number, (), False)
    context.ring.flow.append(make(Completed, event))
    finish_all(calls, None)


def _flow(send: Call, receive: Call, kind: type[Any], last: Any) -> Any:
    """Written by the rank that runs: it may be any, if data moves later."""
    strand = here.strand or receive.strand
    ring = strand.local.ring
    pair = (call_id(send), call_id(receive))
    rank, thread = strand.local.rank, thread_of(strand)
    record = receive.mailbox.record
    ring.flowed += 1
    event = make(kind, (strand.local.now(), rank, thread, None, record, None, pair, last))
    ring.flow.append(event)
    return event


def store_used(
    strand: Strand, store: Any, key: str, shown: str, name: str, **more: Any
) -> None:
    """The program itself used a key; `more` is what `store_fields` takes."""
    context = strand.local
    session, ring = context.session, context.ring
    kind, fields = store_fields(store, key, shown, name, **more)
    event = KINDS[kind](
        context.now(), context.rank, thread_of(strand), callsite.mark(2), *fields
    )
    ring.flowed += 1
    ring.flow.append(event)
    if name in ("set", "check", "add"):
        session.watch_races()
    if session.races is not None:
        session.races.add(event)


def withdraw(call: Call) -> bool:
    """Take back a message whose rank gave up waiting; whether there was one."""
    if not call.mailbox.withdraw(call):
        return False
    rank, thread = call.strand.local.rank, thread_of(call.strand)
    record = call.mailbox.record
    event = Withdrawn(call.strand.local.now(), rank, thread, call.mark, record, call_id(call))
    call.strand.local.ring.add(event)
    races = call.strand.local.session.races
    if races is not None:
        races.add(event)
    return True


def group_made(
    context: RankContext, met: GroupMailbox, member: int, *, default: bool, by_program: bool
) -> None:
    event = GroupMade(
        context.now(),
        context.rank,
        thread_of(here.strand),
        callsite.mark(2),
        met.record,
        member,
        default,
        by_program,
    )
    context.ring.add(event)
    if context.session.races is not None:
        context.session.races.add(event)


def group_destroyed(context: RankContext, met: GroupMailbox, *, default: bool) -> None:
    thread, mark = thread_of(here.strand), callsite.mark(2)
    world, calls = context.torch_state.default_pg, 0
    in_world = None if world is None else world._mailbox
    if in_world is not None:
        calls = in_world.next_number[world._member]
    context.ring.add(
        GroupDestroyed(
            context.now(),
            context.rank,
            thread,
            mark,
            met.record,
            default,
            None if in_world is None else in_world.record,
            calls,
        )
    )
