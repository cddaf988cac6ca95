"""`monitored_barrier`: a barrier in which the first member finds out who does not come.

Gloo's texts say which ranks are missing, and programs and tests look for them; ours begin
alike. Where the program named no timeout of its own nothing runs out: the ranks are stuck,
and the deadlock report says the same and more.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from phalanx.backend.collectives import data_movement
from phalanx.backend.rank_errors import OpTimeoutError
from phalanx.backend.work.work import wait_for
from phalanx.matching.slots import Call

GRACE = 0.25
"""Seconds that others wait longer than the first member, which knows who is missing and ends
their wait: its error is to come first."""


def monitored_barrier(group: Any, timeout: timedelta | None, wait_all_ranks: bool) -> None:
    limit: float = group._limit
    asked = limit if timeout is None else timeout.total_seconds()
    explicit = 0 <= asked < limit
    seconds = asked if explicit else limit
    call = group._call("monitored_barrier")
    call.signature = (call.name,)
    monitors = call.member == 0
    if monitors and seconds == 0:
        raise OpTimeoutError(
            "[Rank 0]: Rank 0 timed out in monitoredBarrier after 0 ms, before any other rank "
            "could be heard; give it a timeout above 0"
        )
    group._submit(call, data_movement.barrier, dist.BarrierOptions(), None)
    slot = call.mailbox.slots.get(call.number)
    if call.error is not None:  # in a run with faults: it cannot even begin
        raise call.error
    try:
        wait_for(call, seconds if monitors else seconds + GRACE, explicit=explicit)
    except OpTimeoutError:
        took = f"{seconds * 1000:.0f} ms"
        if not call.done:  # else the first member has ended the wait
            _close_connections(call)
        if not monitors:
            raise OpTimeoutError(_abandoned(call.member, took)) from None
        assert slot is not None  # or nothing would have timed out
        missing = [member for member, other in enumerate(slot.calls) if other is None]
        for member, other in enumerate(slot.calls):
            if other is not None and other is not call and not other.done:
                other.finish(OpTimeoutError(_abandoned(member, took)))
        raise OpTimeoutError(_missing(missing, took, wait_all_ranks)) from None
    except RuntimeError as error:
        if type(error) is not RuntimeError or slot is None:  # not a lost connection
            raise
        missing = [member for member, other in enumerate(slot.calls) if other is None]
        took = f"{seconds * 1000:.0f} ms"
        text = _missing(missing, took, wait_all_ranks) if monitors else _received(call.member)
        raise RuntimeError(f"{text}: {error}") from None


def _close_connections(call: Call) -> None:
    """Gloo closes the connections of a member whose wait has timed out: the group is of no use
    any more, also for members that come late. Messages between two others still pass."""
    losses = call.strand.local.session.losses
    if losses is not None:  # others then see what they see in any call
        losses.close_connections(call, "gave up in monitoredBarrier")
        return
    for end in list(call.mailbox.ends.values()):
        if end._member == call.member:
            why = "Application timeout caused pair closure"
        else:
            why = (
                f"Connection closed by peer (rank {call.member} of the group gave up in "
                "monitoredBarrier)"
            )
        end._call = partial(_refuse, end, why)


def _refuse(end: Any, why: str, name: str) -> Call:
    """In the place of `Endpoint._call`, so that the usual call is not slowed down."""
    if name in ("send", "recv") and not why.startswith("Application"):
        made: Call = end.make_call(name)
        return made
    raise RuntimeError(why)


def _missing(missing: list[int], took: str, wait_all_ranks: bool) -> str:
    """All of them where that was asked for; else the first, as Gloo stops there."""
    named = missing if wait_all_ranks else missing[:1]
    who = f"{'Ranks' if wait_all_ranks else 'Rank'} {', '.join(map(str, named))}"
    return f"[Rank 0]: {who} failed to pass monitoredBarrier in {took}"


def _abandoned(member: int, took: str) -> str:
    return (
        f"{_received(member)}: it gave up after {took}, and its own error names the ranks that "
        "are missing"
    )


def _received(member: int) -> str:
    return (
        f"[Rank {member}]: Rank {member} successfully reached monitoredBarrier, but received "
        "errors while waiting for send/recv from rank 0"
    )
