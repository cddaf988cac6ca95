"""Orders of calls in which NCCL may stand still, from the precedence graph.

NCCL's kernels wait on the GPU for their counterparts, and a rank's kernels may run one after
the other in the order in which they were issued, whatever stream they are on. So a program is
safe if it would get through with every call blocking, a batch being one call. A wait for a
`Work` changes nothing about that: it makes an order that is only likely certain, and where it
closes a cycle the run itself is a deadlock. Calls of different threads have no order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from phalanx.checks.nccl_rules.nccl_hazards import Hazard, Issued, Law, NcclTrace
from phalanx.checks.nccl_rules.nccl_messages import Traffic, Way, joints_of
from phalanx.matching.hints import name_ranks
from phalanx.matching.precedence import Cycle, find_cycles

OPPOSITE_ORDERS = Law(
    "opposite-orders",
    "with several communicators, all ranks must issue operations in one order",
    "torch.distributed.new_group, Safe concurrent usage; NCCL user guide, Using multiple "
    "NCCL communicators concurrently",
    "issue them in the same order on all ranks",
)
UNBATCHED = Law(
    "unbatched",
    "sends and receives that need each other to go on must be one batch",
    "NCCL user guide, Point-to-point communication; torch.distributed.batch_isend_irecv",
    "give them all to one dist.batch_isend_irecv, or let one rank send first and the other "
    "receive first",
)
MOST_RANKS = 4
"""How many of a longer cycle are shown, unless all are at the same lines."""


@dataclass
class _Issuing:
    """What one thread of a rank issued, as units and their joints."""

    calls: list[list[Issued]] = field(default_factory=list)
    joints: list[list[Hashable]] = field(default_factory=list)
    batch: tuple[int, int] | None = None

    def add(self, call: Issued, joint: Hashable) -> None:
        batch = None if call.batch is None else (call.group, call.batch)
        if batch is None or batch != self.batch:
            self.calls.append([])
            self.joints.append([])
        self.batch = batch
        self.calls[-1].append(call)
        self.joints[-1].append(joint)

    def call_at(self, unit: int, joint: Hashable) -> Issued:
        return self.calls[unit][self.joints[unit].index(joint)]


def find_orders(trace: NcclTrace, traffic: dict[Way, Traffic]) -> Iterator[Hazard]:
    """Cycles, those of equal lines with equal keys. One group without messages has none."""
    if len(trace.groups) < 2 and not traffic:
        return
    lanes = _lanes(trace, joints_of(trace, traffic))
    known: dict[Hashable, Hazard] = {}
    for cycle in find_cycles([lane.joints for lane in lanes]):
        firsts = [lanes[hop.lane].call_at(hop.at, hop.waits) for hop in cycle]
        laters = [lanes[hop.lane].call_at(hop.later, hop.owes) for hop in cycle]
        key = frozenset((call.name, call.place) for call in (*firsts, *laters))
        if key in known:
            yield _again(known[key], firsts)
            continue
        if all(call.is_message for call in firsts):
            hazard = _of_messages(firsts, laters)
        else:
            hazard = _of_orders(trace, firsts, _orders(lanes, cycle, firsts, laters))
        known[key] = replace(hazard, key=(hazard.law.name, key))
        yield known[key]


def _again(known: Hazard, firsts: list[Issued]) -> Hazard:
    """The same lines, maybe on other ranks."""
    if known.law is OPPOSITE_ORDERS:
        return known
    return replace(known, ranks=tuple(sorted({call.rank for call in firsts})))


def _lanes(trace: NcclTrace, messages: dict[int, Hashable]) -> list[_Issuing]:
    found: dict[tuple[int, int], _Issuing] = {}
    for calls in trace.ranks:
        for call in calls:
            if call.number is not None:
                joint: Hashable = (call.group, call.number)
            elif id(call) in messages:
                joint = messages[id(call)]
            else:
                continue
            found.setdefault((call.rank, call.thread), _Issuing()).add(call, joint)
    return list(found.values())


Row = tuple[tuple[int, ...], Issued, Issued]
"""Ranks that issue one call and later the other."""


def _orders(
    lanes: Sequence[_Issuing], cycle: Cycle, firsts: list[Issued], laters: list[Issued]
) -> list[Row]:
    """Of two operations: all ranks that have both, by order. Else those of the cycle alone."""
    if len(cycle) != 2:
        return _rows(firsts, laters)
    rows: dict[bool, list[int]] = {True: [], False: []}
    one, other = (hop.waits for hop in cycle)
    for lane in lanes:
        at = [unit for unit, joints in enumerate(lane.joints) if one in joints]
        then = [unit for unit, joints in enumerate(lane.joints) if other in joints]
        if at and then and at != then:
            rows[at < then].append(lane.calls[0][0].rank)
    return [
        (tuple(sorted(rows[True])), firsts[0], laters[0]),
        (tuple(sorted(rows[False])), firsts[1], laters[1]),
    ]


def _at_fault(rows: list[Row]) -> tuple[int, ...]:
    """The smaller part, if there is one."""
    if len(rows) != 2 or len(rows[0][0]) == len(rows[1][0]):
        return ()
    return min((row[0] for row in rows), key=len)


def _of_messages(firsts: list[Issued], laters: list[Issued]) -> Hazard:
    ranks = tuple(sorted({call.rank for call in firsts}))
    who, names = name_ranks(ranks), {call.name for call in firsts}
    to, at = ("to each other", "from each other") if len(ranks) == 2 else ("in a ring",) * 2
    if len(ranks) == 1:
        does = "sends to itself, then receives"
    elif names == {"send"}:
        does = f"send {to} first"
    elif names == {"recv"}:
        does = f"receive {at} first"
    else:
        does = "exchange messages in orders that clash"
    headline = f"{who} {does}, unbatched; NCCL may hang"
    rows = _rows(firsts, laters)
    return Hazard(UNBATCHED, None, ranks, headline, _calls(rows), _path(firsts))


def _of_orders(trace: NcclTrace, firsts: list[Issued], rows: list[Row]) -> Hazard:
    odd = _at_fault(rows)
    ranks = odd or tuple(sorted({rank for row in rows for rank in row[0]}))
    does = _usage(trace, firsts, rows, odd) if odd else _difference(trace, firsts)
    headline = f"{name_ranks(ranks)} {does}; NCCL may hang"
    return Hazard(OPPOSITE_ORDERS, None, ranks, headline, _calls(rows), _path(firsts))


def _usage(
    trace: NcclTrace, firsts: list[Issued], rows: list[Row], odd: tuple[int, ...]
) -> str:
    """What the odd ranks did that the others did not."""
    (_, first, later), (rest, _, _) = rows if rows[0][0] == odd else rows[::-1]
    one, other = _what(trace, [first, later])
    verb = "issue" if any(call.is_message for call in firsts) else "use"
    return f"{verb}{'s' * (len(odd) == 1)} {one} before {other}, unlike {name_ranks(rest)}"


def _difference(trace: NcclTrace, firsts: list[Issued]) -> str:
    *most, last = _what(trace, firsts)
    what = f"{', '.join(most)} and {last}"
    if any(call.is_message for call in firsts):
        return f"order {what} differently"
    how = "in opposite orders" if len(firsts) == 2 else "in orders that make a cycle"
    return f"use {what} {how}"


def _what(trace: NcclTrace, calls: list[Issued]) -> list[str]:
    """Groups by name, or the calls where there are messages among them."""
    if any(call.is_message for call in calls):
        return [_word(call) for call in calls]
    return [f'"{trace.groups[call.group].name}"' for call in calls]


def _rows(firsts: list[Issued], laters: list[Issued]) -> list[Row]:
    return [((a.rank,), a, b) for a, b in zip(firsts, laters, strict=True)]


def _calls(rows: list[Row]) -> tuple[tuple[tuple[int, ...], Issued, str], ...]:
    shown = []
    alike = {(first.place, later.place) for _, first, later in rows}
    for ranks, first, later in rows[: MOST_RANKS if len(alike) > 1 else 2]:
        shown += [(ranks, first, "issued first"), (ranks, later, "issued after it")]
    return tuple(shown)


def _word(call: Issued) -> str:
    return "a message" if call.is_message else call.name


def _path(firsts: list[Issued]) -> tuple[tuple[str, str], ...]:
    """The way around a cycle of more than two."""
    ranks = [call.rank for call in firsts]
    if len(ranks) < 3:
        return ()
    shown = [*ranks, ranks[0]] if len(ranks) <= 8 else ranks[:8]
    text = " -> ".join(f"rank {rank}" for rank in shown)
    return (("cycle", text if len(ranks) <= 8 else f"{text} -> ... ({len(ranks)} ranks)"),)
