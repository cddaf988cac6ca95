"""Message race: receives from any source that could have had another message.

The order of events is kept from the first such receive on; until then this costs nothing. The
group calls `posted` and `delivered`. Keys of stores are watched by
`backend/stores/store_order.py`. Deciding is done in `checks/message_race.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from phalanx.backend.evidence.call_description import describe_call
from phalanx.backend.session import Session
from phalanx.backend.stores.store_order import KIND, tell
from phalanx.checks.message_race import Arrival, Taken, find_rival, is_chosen, message_race
from phalanx.matching.happens_before import NOTHING, Known, Ordering
from phalanx.matching.slots import Assembly, Call
from phalanx.model import Verdict

MOST_TAKEN = 32
"""How many receives from any source are remembered of a rank, tag and group."""


def posted(session: Session, call: Call) -> None:
    """A send or a receive is on its way to the others."""
    if session.order is None:
        if KIND not in session.kinds:
            return
        session.order = Ordering(session.size)
    call.known = session.order.known_to(_rank(call))
    if call.name == "recv":
        session.posts += 1
        call.posted = session.posts


def delivered(session: Session, send: Call, receive: Call) -> None:
    """A message has found its receive."""
    order = session.order
    assert order is not None
    source, target = _rank(send), _rank(receive)
    known: Known = send.known or NOTHING
    layout = (receive.outputs[0].dtype, receive.outputs[0].numel())
    taken = _taken(receive.assembly, receive.member, receive.tag)
    if taken:
        any_source = receive.peer is None
        arrival = Arrival(source, known, receive.posted, any_source, layout)
        rival = find_rival(taken, arrival)
        if rival is not None and not is_chosen(rival.op, describe_call(receive)):
            tell(session, message_race(rival, describe_call(send), describe_call(receive)))
    if receive.peer is None:
        number = order.event(target)
        taken.append(Taken(describe_call(receive), source, number, receive.posted, layout))
    order.learn(target, known)
    order.learn(source, receive.known or NOTHING)


def find_message_races(session: Session) -> Iterable[Verdict]:
    """What nobody received although a receive from any source could have; then forget."""
    if session.order is None:
        return []
    found = []
    for met in session.assemblies.values():
        for member, sends in met.sends.items():
            for send in sends:
                arrival = Arrival(_rank(send), send.known or NOTHING)
                rival = find_rival(_taken(met, member, send.tag), arrival)
                if rival is not None:
                    found.append(message_race(rival, describe_call(send), None))
        met.notes.pop(KIND, None)
    session.notes.pop(KIND, None)
    session.order = None
    return found[:1]


def _taken(met: Assembly, member: int, tag: int | None) -> deque[Taken]:
    table = met.notes.setdefault(KIND, {})
    found: deque[Taken] | None = table.get((member, tag))
    if found is None:
        found = table[member, tag] = deque(maxlen=MOST_TAKEN)
    return found


def _rank(call: Call) -> int:
    return call.assembly.ranks[call.member]
