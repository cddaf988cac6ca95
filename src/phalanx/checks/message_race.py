"""Races between messages, and between writes to a store. Pure, over what was seen to happen.

Used by the observer of this kind and by whoever explains a deadlock.

| seen                                                        | verdict                      |
|-------------------------------------------------------------|------------------------------|
| a receive from any source took a message; a later receive   |                              |
| by the same rank, tag and group names another source (or    |                              |
| has room for another size), and that source sent without    | race: the first could have   |
| knowing that the first receive was over                     | taken the second's message   |
| such a message that nobody received                         | race: whoever came first     |
| receives from any source alone, of one size                 | legal: they may be exchanged |
| the first receive's answer, who sent, is kept, and the      | legal: the program may have  |
| second's source is no number in the program's line          | chosen it by that            |
| the second source heard of the first receive before it sent | legal: ordered               |
| a message behind another one of its sender                  | legal: it cannot overtake    |
| two ranks set one key to different values, neither knew of  |                              |
| the other's, and somebody read it                           | race                         |
| a rank found a key missing and set it; another one looked   | race: both may find it       |
| at the same line without knowing of that                    | missing                      |
| the same value, `add`, `compare_set`, or nobody read        | legal                        |
| ranks that look until a key is there, and set nothing       | legal: they wait             |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from phalanx.matching.happens_before import Known, knows
from phalanx.model import CallBlock, Finding, Op

_RECV = re.compile(r"\brecv\(")
_DROPPED = re.compile(r"(\w+\.)*recv\(")
_NUMBER = re.compile(r",\s*(src\s*=\s*)?\d")


@dataclass
class Taken:
    """A receive from any source and the message it took. `number` counts such receives of the
    rank; `posted` all receives. `seen` are sources of which a later receive has had one."""

    op: Op
    source: int
    number: int
    posted: int
    layout: object = None
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


@dataclass(frozen=True)
class Write:
    """One rank set a key; `number` is that of the event on its rank."""

    op: Op
    value: bytes
    number: int


def find_unordered_write(
    writes: Iterable[Write], latest: Write, known: Known
) -> tuple[Write, Write] | None:
    """A write of another value by another rank that the latest one's rank did not know of."""
    for each in writes:
        if each.op.rank == latest.op.rank or each.value == latest.value:
            continue
        if not knows(known, each.op.rank, each.number):
            return each, latest
    return None


def store_race(writes: tuple[Write, Write], read: Op) -> Finding:
    one, other = sorted((write.op for write in writes), key=lambda op: op.rank)
    return Finding(
        kind="message-race",
        severity="warning",
        ranks=(one.rank, other.rank),
        headline=(
            f'ranks {one.rank} and {other.rank} set "{one.key}" to different values, '
            f"unordered; rank {read.rank} read it"
        ),
        blocks=(
            CallBlock((one.rank,), one),
            CallBlock((other.rank,), other),
            CallBlock((read.rank,), read, ("got the value of whoever was there last",)),
        ),
        hint="let one rank set it, use a key for each rank, or put a barrier between them",
    )


@dataclass(frozen=True)
class Look:
    """A rank looked whether a key is there; `number` is that of the event on its rank."""

    op: Op
    number: int
    found: bool


Claim = tuple[Look, Write]
"""A rank found a key missing, and set it."""


def find_claim_race(claim: Claim, look: Look, *, latest: int, known: Known) -> Finding | None:
    """Whether another rank's look at the same line may have come before or after the claim;
    `latest` is the rank that acted last, and `known` what it knew then."""
    mine, write = claim
    if look.op.rank == mine.op.rank or look.op.site != mine.op.site:
        return None
    if latest == look.op.rank and knows(known, write.op.rank, write.number):
        return None
    if latest != look.op.rank and knows(known, look.op.rank, look.number):
        return None
    one, other = sorted((mine.op, look.op), key=lambda op: op.rank)
    return Finding(
        kind="message-race",
        severity="warning",
        ranks=(one.rank, other.rank),
        headline=(
            f'ranks {one.rank} and {other.rank} may both find "{one.key}" missing: '
            "to look and to set are two steps"
        ),
        blocks=(
            CallBlock((one.rank, other.rank), one),
            CallBlock((write.op.rank,), write.op, ("because it found none",)),
        ),
        hint="use compare_set or add, which do both at once, or let one rank set it",
    )
