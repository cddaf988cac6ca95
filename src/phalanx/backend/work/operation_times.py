"""When an operation completes whose network has a cost: later than its last member came.

Used by the process group, in runs with `network=`. The data moves when the last member comes,
which is legal; the operation completes when the network says, and whoever waits goes on then.
Operations of one group follow each other, as on one stream; messages follow each other on the
links that they go over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from phalanx.backend.call_events import complete_collective, complete_message
from phalanx.core.computing import forgive
from phalanx.core.strand import here
from phalanx.costs.network import GATHERS, SCATTERS, Network
from phalanx.matching.slots import Call

if TYPE_CHECKING:
    from phalanx.backend.session import Session


def complete_later(session: Session, network: Network, calls: Sequence[Call]) -> None:
    """The members of a collective are all there, and its data has moved."""
    call = calls[0]
    baton = call.strand.baton
    if here.strand is not None:
        forgive(here.strand)
    size = max(map(_size_of, calls))
    seconds = network.collective(call.name, size, call.mailbox.ranks)
    stream = ("stream", call.mailbox)
    begins = max(baton.clock.now(), session.busy.get(stream, 0.0))
    session.busy[stream] = ends = begins + seconds
    baton.call_at(ends, partial(complete_collective, calls))


def deliver_later(session: Session, network: Network, send: Call, receive: Call) -> None:
    """A message has met its receive, and its data has moved."""
    baton, ranks = send.strand.baton, send.mailbox.ranks
    size = sum(map(_bytes_of, send.inputs))
    message = network.message(size, ranks[send.member], ranks[receive.member])
    busy = session.busy
    begins = max(baton.clock.now(), *(busy.get(port, 0.0) for port in message.ports))
    for port in message.ports:
        busy[port] = begins + message.seconds
    ends = begins + message.seconds + message.latency
    baton.call_at(ends, partial(complete_message, send, receive, None))


def _size_of(call: Call) -> int:
    """As `nccl-tests` counts: all that is gathered or scattered; else what one rank gives."""
    if call.name in GATHERS:
        return sum(map(_bytes_of, call.inputs)) * call.mailbox.size
    if call.name in SCATTERS:
        return sum(map(_bytes_of, call.outputs)) * call.mailbox.size
    return sum(map(_bytes_of, call.inputs))


def _bytes_of(given: Tensor | Iterable[Any]) -> int:
    if isinstance(given, Tensor):
        return given.numel() * given.element_size()
    return sum(map(_bytes_of, given))
