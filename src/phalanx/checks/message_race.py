"""Message race: a receive from any source that could have had another message.

`RaceWatch` follows a run event by event. On threads it is fed as things happen, from the first
event that could race: the journal forgets, and what came before needs no order. Where ranks are
processes it goes through the journal when the run has ended, in an order in which it may have
happened (`journal/causal_order.py`). Stores are in `store_race.py`.

| seen                                                        | verdict                      |
|-------------------------------------------------------------|------------------------------|
| a receive from any source took a message; a later receive   |                              |
| by the same rank, tag and group names another source (or    |                              |
| has room for another size), and that source sent without    | race: the first could have   |
| knowing that the first receive was over                     | taken the second's message   |
| such a message that nobody received                         | race: whoever came first     |
| receives from any source alone, of one size, at two lines,  | race: who came first decides |
| and arithmetic with both tensors gives another result if    | the result                   |
| they are exchanged (`a - b`, not `a + b`); or at one line,  |                              |
| in a loop that appends them to a list, which is joined      |                              |
| the same, where a function of the program receives and      |                              |
| hands the tensor to the one function that calls it          |                              |
| the same at one line, behind which a variable is updated    |                              |
| with the tensor, and two updates exchanged give another     |                              |
| value (`m = 0.9 * m + g`, not `m += g`)                     |                              |
| the same at one line, where a loop appends to a list, which |                              |
| `zip` puts beside a list of constants, and both are used    |                              |
| the same at one line, behind a receive from any source with |                              |
| another tag; both are compared, multiplied, or one says     |                              |
| where the other is kept                                     |                              |
| receives from any source alone, of one size                 | legal: they may be exchanged |
| the first receive's answer, who sent, is kept, and the      | legal: the program may have  |
| second's source is no number in the program's line          | chosen it by that            |
| the second source heard of the first receive before it sent | legal: ordered               |
| a message behind another one of its sender                  | legal: it cannot overtake    |
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from types import CodeType
from typing import Any, Protocol

from phalanx.callsite import line_at, site_at
from phalanx.checks.order.message_loops import with_places
from phalanx.checks.store_race import StoreWatch, find_reused_stores
from phalanx.journal.causal_order import in_causal_order
from phalanx.journal.events import (
    CallId,
    Event,
    GroupMade,
    GroupRecord,
    Met,
    Posted,
    StoreRead,
    StoreWritten,
    Withdrawn,
)
from phalanx.journal.reader import Journal
from phalanx.matching.happens_before import NOTHING, Known, Ordering, knows
from phalanx.model import CallBlock, Finding, Op, Site
from phalanx.source_pairs import find_pairing
from phalanx.source_updates import find_update, received_at
from phalanx.source_uses import kept_in_order, lopsided, lopsided_in, received_name

KIND = "message-race"
MOST_TAKEN = 32
"""How many receives from any source are remembered of a rank, tag and group."""

_RECV = re.compile(r"\brecv\(")
_DROPPED = re.compile(r"(\w+\.)*recv\(")
_NUMBER = re.compile(r",\s*(src\s*=\s*)?\d")


class RaceHost(Protocol):
    """What this check asks of the engine besides the journal."""

    @property
    def races(self) -> RaceWatch | None:
        """The watch that was fed on the way; None if nothing could race, or where nobody saw
        things as they happened."""


def find_message_races(journal: Journal, host: RaceHost) -> Iterable[Finding]:
    return [*_find_races(journal, host), *find_reused_stores(journal)]


def _find_races(journal: Journal, host: RaceHost) -> Iterable[Finding]:
    if journal.in_order:
        return host.races.findings() if host.races is not None else ()
    events = in_causal_order(journal)
    if events is None:
        return ()
    watch = RaceWatch(with_places(journal))
    for event in events:
        watch.add(event)
    return watch.findings()[:1]


class RaceWatch:
    """What each rank knows of the others, and which receives from any source took what.
    `pending` are sends that nobody has received so far."""

    def __init__(self, journal: Journal, pending: Iterable[Posted] = ()) -> None:
        self._journal = journal
        self._order = Ordering(journal.ranks)
        self._stores = StoreWatch(journal.ranks, self._order)
        if journal.in_order:
            for made in journal.filter(kind="group-made"):
                self._stores.make_group(made.rank)
        self._sends = {send.call: send for send in pending}
        self._known: dict[CallId, Known] = {}
        """What their ranks knew when they posted messages that are not met."""
        self._taken: dict[tuple[GroupRecord, int, int | None], deque[Taken]] = {}
        self._found: dict[Any, Finding] = {}
        """By the lines concerned."""

    def add(self, event: Event) -> None:
        """The next event; those of messages, slots, stores and makings of groups count."""
        if isinstance(event, Met):
            if event.number is not None:
                self._order.meet(event.group.ranks)
            elif len(event.calls) == 2:
                self._deliver(*event.calls)
        elif isinstance(event, Posted):
            if event.is_message:
                self._known[event.call] = self._order.known_to(event.rank)
                if event.name == "send":
                    self._sends[event.call] = event
        elif isinstance(event, (StoreWritten, StoreRead)):
            for found in self._stores.add(event):
                self._tell(found)
        elif isinstance(event, GroupMade):
            self._stores.make_group(event.rank)
        elif isinstance(event, Withdrawn):
            self._sends.pop(event.call, None)
            self._known.pop(event.call, None)

    def taken(self, group: GroupRecord, member: int, tag: int | None) -> Iterable[Taken]:
        """What receives from any source of a member took."""
        return self._taken.get((group, member, tag), ())

    def findings(self) -> list[Finding]:
        """All there is, once nothing more will happen; last a message that nobody received
        although a receive from any source could have."""
        for reused in self._stores.findings():
            self._tell(reused)
        found = list(self._found.values())
        for send in self._sends.values():
            arrival = Arrival(send.rank, self._known.get(send.call, NOTHING))
            taken = self.taken(send.group, send.peer or 0, send.tag)
            rival = find_rival(taken, arrival)
            if rival is not None:
                return [*found, message_race(rival, send.as_op(bare=False), None)]
        return found

    def _deliver(self, sent: CallId, received: CallId) -> None:
        """A message has found its receive."""
        send = self._sends.pop(sent, None) or self._journal.call(sent)
        receive = self._journal.call(received)
        known = self._known.pop(sent, NOTHING)
        known_to_receiver = self._known.pop(received, NOTHING)
        if send is None or receive is None:
            return  # forgotten
        order, any_source = self._order, receive.peer is None
        key = (receive.group, receive.member, receive.tag)
        taken = self._taken.get(key)
        if taken or any_source:
            layout = [(spec.dtype, prod(spec.shape)) for spec in receive.tensors]
            arrival = Arrival(send.rank, known, receive.serial, any_source, layout)
            rival = find_rival(taken or (), arrival)
            op = receive.as_op(bare=False)
            if rival is not None and not is_chosen(rival.op, op):
                self._tell(message_race(rival, send.as_op(bare=False), op))
            elif any_source and rival is None:
                self._compare(taken or (), arrival, receive, send)
            if any_source:
                number = order.event(receive.rank)
                took = Taken(op, send.rank, number, receive.serial, layout, receive.mark)
                self._taken.setdefault(key, deque(maxlen=MOST_TAKEN)).append(took)
        order.learn(receive.rank, known)
        order.learn(send.rank, known_to_receiver)

    def _compare(
        self, taken: Iterable[Taken], arrival: Arrival, receive: Posted, send: Posted
    ) -> None:
        """Receives that may be exchanged, unless the program tells the two tensors apart."""
        for each in taken:
            if each.source == arrival.source:
                continue
            if knows(arrival.known, each.op.rank, each.number):
                continue
            found = tells_apart(each.mark, receive.mark)
            if found is not None:
                finding = message_race(each, send.as_op(bare=False), receive.as_op(bare=False))
                self._tell(_exchanged(finding, *found))
                return

    def _tell(self, finding: Finding) -> None:
        """Once for the lines concerned."""
        self._found.setdefault(tuple(block.op.site for block in finding.blocks), finding)


@dataclass
class Taken:
    """A receive from any source and the message it took. `number` counts such receives of the
    rank; `posted` all receives. `seen` are sources of which a later receive has had one."""

    op: Op
    source: int
    number: int
    posted: int
    layout: object = None
    mark: Any = None
    seen: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Arrival:
    """A message and the receive that got it. `known` is what its sender knew when it sent;
    `any_source` says that the receive named none; `posted` is None if nobody received it."""

    source: int
    known: Known
    posted: int | None = None
    any_source: bool = False
    layout: object = None


def find_rival(taken: Iterable[Taken], arrival: Arrival) -> Taken | None:
    """The receive that could have had this message instead. To be called for every message of
    the rank, tag and group, in the order in which they were received."""
    found = None
    for each in taken:
        if arrival.posted is not None and arrival.posted <= each.posted:
            continue
        first = arrival.source not in each.seen
        each.seen.add(arrival.source)
        if not first or each.source == arrival.source:
            continue
        alike = arrival.any_source and arrival.layout == each.layout
        if found is None and not alike:
            ordered = knows(arrival.known, each.op.rank, each.number)
            found = None if ordered else each
    return found


@functools.lru_cache(maxsize=256)
def tells_apart(one: Any, other: Any) -> tuple[str, Site] | None:
    """What the program makes of the tensors of two receives in one function, and its place,
    which gives another result if the two are exchanged."""
    if not (_is_code(one) and _is_code(other)) or one[0] != other[0]:
        return None
    if one == other:
        found = kept_in_order(one) or _updated_in_order(one) or find_pairing(one)
        return None if found is None else (found[0], site_at(one[0], found[1]))
    names = [received_name(place) for place in (one, other)]
    if None in names or names[0] == names[1]:
        return None
    last = max(line_at(*one), line_at(*other))
    found = lopsided(one[0], last, str(names[0]), str(names[1]))
    return None if found is None else (found[0], site_at(one[0], found[1]))


def _updated_in_order(place: Any) -> tuple[str, int] | None:
    """For a receive that runs again and again: what the program makes of its tensors, which
    depends on their order, and the line."""
    received = received_at(place)
    if len(received) == 1:
        return find_update(received[0])
    for one, other in pairwise(received):
        if one.name != other.name:
            last = max(one.statement.lineno, other.statement.lineno)
            return lopsided_in(one.scope, last, one.name, other.name)
    return None


def _is_code(mark: Any) -> bool:
    """Whether it is a place in code that is here: a journal from elsewhere has other marks."""
    return isinstance(mark, tuple) and bool(mark) and isinstance(mark[0], CodeType)


def _exchanged(finding: Finding, text: str, site: Site) -> Finding:
    rank = finding.ranks[0]
    hint = "both were on their way: name the source in both, or use a tag of its own"
    if finding.blocks[0].op.site == finding.blocks[-1].op.site:
        hint = (
            "both were on their way: name the source, rank by rank, or keep who sent, which "
            "recv returns, and go by that"
        )
    return replace(
        finding,
        headline=f"rank {rank} takes messages as they come, which decides {text} ({site})",
        hint=hint,
    )


def is_chosen(taken: Op, receive: Op) -> bool:
    """Whether the source of the second receive may come from what the first one answered: the
    program keeps that answer, and does not write the source as a number."""
    first, second = taken.site, receive.site
    if first is None or second is None or receive.peer is None:
        return False
    kept = _RECV.search(first.source) and not _DROPPED.match(first.source)
    return bool(kept) and _NUMBER.search(second.source) is None


def hint_taken(taken: Iterable[Taken], waiting: Op) -> str | None:
    """For a receive that waits in vain: the receive from any source that had its message."""
    for each in taken:
        op = each.op
        if (op.rank, op.group, op.tag) != (waiting.rank, waiting.group, waiting.tag):
            continue
        if waiting.peer is not None and each.source == waiting.peer:
            return (
                f"recv(src=any) of rank {op.rank} at {op.site} took the message from rank "
                f"{each.source} that recv(src={waiting.peer}) waits for"
            )
    return None


def message_race(taken: Taken, send: Op, receive: Op | None) -> Finding:
    """The finding about a rival: `receive` got the message of `send`, if anybody did."""
    rank = taken.op.rank
    if receive is None:
        what = f"that of rank {send.rank}, which nobody received"
        hint = "both were on their way: receive as many messages as there are"
    elif receive.peer is None:
        what = f"that of rank {send.rank}, of another size"
        hint = "both were on their way: name the source, or use a tag for each size"
    else:
        what = f"that which recv(src={send.rank}) got"
        hint = "both were on their way: name the source in both, or use a tag of its own"
    blocks = [
        CallBlock((rank,), taken.op, (f"took the message from rank {taken.source}",)),
        CallBlock((send.rank,), send, (), "<- or this one"),
    ]
    if receive is not None:
        blocks.append(CallBlock((rank,), receive, (f"took it from rank {send.rank}",)))
    return Finding(
        kind="message-race",
        severity="warning",
        ranks=(rank,),
        headline=f"recv(src=any) of rank {rank} could as well have taken {what}",
        blocks=tuple(blocks),
        hint=hint,
    )
