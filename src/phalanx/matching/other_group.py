"""Calls that never meet because they are made on different groups. Pure, over waits.

Used by the engine when ranks cannot move. The rules, each a `mismatch`:

- every member of the default group waits in the same operation, some on the default group and
  some on another group of the same members;
- ranks wait in `init_process_group` at different addresses, or at one with different sizes,
  and are as many as the world of one of them;
- a receive waits, and the rank it waits for is blocked in a send to it, or has returned after
  one, with the same tag on another group.

Other groups of the same members, used in opposite orders, are a plain deadlock: each rank
would have come to the other's call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Op, Wait

DEFAULT = "world"
_SHOWN_PLACES = 3
INIT = "init_process_group"
"""The call whose group is named by the address where its members meet, and by its size."""


def find_other_group(
    waits: Sequence[Wait], sends: Iterable[Op] = (), gone: Collection[int] = ()
) -> Finding | None:
    """`sends` are messages that nobody has received, `gone` ranks that have returned."""
    found = _find_address(waits) or _find_collective(waits)
    return found or _find_message(waits, list(sends), gone)


def _find_address(waits: Sequence[Wait]) -> Finding | None:
    places: dict[str, list[Op]] = {}
    for wait in waits:
        if wait.op.name == INIT:
            places.setdefault(wait.op.group.name, []).append(wait.op)
    ops = [op for each in places.values() for op in each]
    if len(places) < 2 or len(ops) < min(len(op.group.ranks) for op in ops):
        return None
    many, *others = sorted(places.values(), key=len, reverse=True)
    decided = len(many) > sum(map(len, others))
    differs = _what_differs(places)
    return Finding(
        kind="mismatch",
        severity="error",
        ranks=tuple(sorted(op.rank for each in others for op in each)) if decided else (),
        headline=_where(many, others, whole="world_size" in differs),
        blocks=(
            *_blocks(many),
            *(b for each in others for b in _blocks(each, "<- differs" if decided else "")),
        ),
        facts=(
            ("differs", differs if decided else f"{differs} (no majority: cannot be decided)"),
            ("rule", "the ranks of a world meet at one address, with one world_size"),
        ),
    )


def _what_differs(places: Iterable[str]) -> str:
    parts = zip(*(place.rsplit(", ", 1) for place in places), strict=True)
    words = zip(("address", "world_size"), parts, strict=True)
    return " and ".join(word for word, given in words if len(set(given)) > 1)


def _where(many: Sequence[Op], others: Sequence[Sequence[Op]], *, whole: bool) -> str:
    """Who waits where; the `whole` place, or the address alone."""
    shown = [many, *others[:_SHOWN_PLACES]]
    places = [ops[0].group.name for ops in shown]
    at = places if whole else [place.rsplit(", ", 1)[0] for place in places]
    who = [name_ranks(op.rank for op in ops) for ops in shown]
    text = f"{who[0]} {'waits' if len(many) == 1 else 'wait'} in {INIT} at {at[0]}"
    parts = [text, *(f"{ranks} at {where}" for ranks, where in zip(who, at, strict=True))]
    del parts[1]
    left = len(others) - _SHOWN_PLACES
    return ", ".join(parts + [f"others at {left} more"] * (left > 0))


def _find_collective(waits: Sequence[Wait]) -> Finding | None:
    by_name: dict[str, list[Op]] = {}
    for wait in waits:
        if wait.op.number is not None:
            by_name.setdefault(wait.op.group.name, []).append(wait.op)
    there = by_name.get(DEFAULT)
    if there is None:
        return None
    default = there[0].group
    for name, ops in by_name.items():
        if name != DEFAULT and set(ops[0].group.ranks) == set(default.ranks):
            everyone = {op.rank for op in (*ops, *there)} == set(default.ranks)
            if everyone and len({op.name for op in (*ops, *there)}) == 1:
                return _finding(there, ops)
    return None


def _finding(one: Sequence[Op], other: Sequence[Op]) -> Finding:
    few, many = sorted((one, other), key=len) if len(one) != len(other) else (other, one)
    decided = len(few) < len(many)
    ranks = tuple(sorted(op.rank for op in few)) if decided else ()
    name = few[0].name
    return Finding(
        kind="mismatch",
        severity="error",
        ranks=ranks,
        headline=(
            f'{name_ranks(op.rank for op in few)} called {name} on "{few[0].group.name}" where '
            f'{name_ranks(op.rank for op in many)} called it on "{many[0].group.name}"'
        ),
        blocks=(
            *_blocks(many),
            *_blocks(few, mark="<- differs" if decided else ""),
        ),
        facts=(
            ("differs", "group" if decided else "group (no majority: cannot be decided)"),
            ("rule", "calls on different groups never meet, though the members are the same"),
        ),
    )


def _blocks(ops: Sequence[Op], mark: str = "") -> list[CallBlock]:
    alike: dict[object, list[Op]] = {}
    for op in sorted(ops, key=lambda op: op.rank):
        alike.setdefault(op.site, []).append(op)
    return [
        CallBlock(tuple(op.rank for op in same), same[0], mark=mark) for same in alike.values()
    ]


def _find_message(
    waits: Sequence[Wait], sends: Sequence[Op], gone: Collection[int]
) -> Finding | None:
    blocked = {wait.op.rank: wait.op for wait in waits}
    for wait in waits:
        recv = wait.op
        if recv.name != "recv" or recv.tag is None:
            continue
        for send in sends:
            waits_there = send.rank in gone or _is_same_call(blocked.get(send.rank), send)
            if (
                waits_there
                and send.peer == recv.rank
                and recv.peer in (None, send.rank)
                and send.tag == recv.tag
                and send.group != recv.group
            ):
                return _message_finding(send, recv)
    return None


def _is_same_call(op: Op | None, send: Op) -> bool:
    return op is not None and (op.name, op.group, op.peer, op.tag) == (
        send.name,
        send.group,
        send.peer,
        send.tag,
    )


def _message_finding(send: Op, recv: Op) -> Finding:
    return Finding(
        kind="mismatch",
        severity="error",
        ranks=(),
        headline=(
            f'rank {send.rank} sent on "{send.group.name}" where rank {recv.rank} receives '
            f'on "{recv.group.name}"'
        ),
        blocks=(CallBlock((send.rank,), send), CallBlock((recv.rank,), recv)),
        facts=(
            ("differs", "group"),
            ("rule", "a message meets only receives on its own group"),
        ),
    )
