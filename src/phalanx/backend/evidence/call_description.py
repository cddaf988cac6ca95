"""From calls in flight to the words of `phalanx.model`. Used by checks and by snapshots."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from phalanx.backend.collectives.call_signature import order_of
from phalanx.backend.collectives.reduction import NAMES
from phalanx.backend.group_history import MakingWait
from phalanx.backend.stores.store import StoreWait
from phalanx.callsite import Mark, resolve
from phalanx.checks.message_race import hint_taken
from phalanx.core.strand import Strand
from phalanx.matching.slots import Assembly, Call, Past, Slot
from phalanx.model import Group, Op, Site, TensorSpec, Wait

_UNTOLD = ("", "undefined", "None", "default_pg")
"""What torch says of groups that nobody has described."""


class LookCache:
    """What many calls have in common is found out once: a thousand ranks are at few places.
    It holds for the time of one look, in which nothing moves."""

    def __init__(self) -> None:
        self._sites: dict[tuple[int, int], Site | None] = {}
        self._missing: dict[int, tuple[int, ...]] = {}
        self._groups: dict[int, Group] = {}

    def site(self, mark: Mark | None) -> Site | None:
        if mark is None:
            return None
        key = id(mark[0]), mark[1]
        if key not in self._sites:
            self._sites[key] = resolve(mark)
        return self._sites[key]

    def group(self, met: Assembly) -> Group:
        found = self._groups.get(id(met))
        if found is None:
            found = self._groups[id(met)] = group_of(met)
        return found

    def missing(self, met: Assembly, slot: Slot) -> tuple[int, ...]:
        found = self._missing.get(id(slot))
        if found is None:
            calls = enumerate(slot.calls)
            found = tuple(met.ranks[member] for member, there in calls if there is None)
            self._missing[id(slot)] = found
        return found


def group_of(met: Assembly) -> Group:
    return Group(shown_name(met), met.ranks)


def shown_name(met: Assembly) -> str:
    """With what the program, or a mesh for its dimension, calls the group."""
    found: str | None = met.notes.get("name")
    if found is None:
        end = next(iter(met.ends.values()), None)
        given = str(getattr(end, "group_desc", "")) if met.name != "world" else ""
        if given in _UNTOLD:
            return met.name
        found = met.notes["name"] = f"{met.name}: {given}"
    return found


def describe_call(call: Call, known: LookCache | None = None) -> Op:
    met = call.assembly
    splits = call.facts or ((), ())
    return Op(
        rank=met.ranks[call.member],
        name=call.name,
        group=known.group(met) if known is not None else group_of(met),
        number=call.number,
        root=None if call.root is None else met.ranks[call.root],
        reduce_op=NAMES[call.op[0]] if call.op is not None else None,
        peer=None if call.peer is None else met.ranks[call.peer],
        tag=call.tag,
        inputs=specs_of(call.inputs),
        outputs=specs_of(call.outputs),
        input_splits=splits[0],
        output_splits=splits[1],
        site=known.site(call.mark) if known is not None else resolve(call.mark),
    )


def describe_past(met: Assembly, rank: int, past: Past, known: LookCache) -> Op:
    number, name, op, root, mark = past
    return Op(
        rank=rank,
        name=name,
        group=known.group(met),
        number=number,
        root=None if root is None else met.ranks[root],
        reduce_op=NAMES[op[0]] if op is not None else None,
        site=known.site(mark),
    )


def describe_wait(strand: Strand, size: int, known: LookCache | None = None) -> Wait | None:
    """What a parked strand needs, None if it waits for time only."""
    why = strand.why
    if isinstance(why, Call):
        return describe_pending(why, known)
    if isinstance(why, MakingWait):
        return why.describe()
    if isinstance(why, StoreWait):
        world = Group("world", everyone(size))
        op = Op(
            rank=strand.rank,
            name=why.call,
            group=world,
            key=", ".join(why.keys),
            site=resolve(why.mark),
        )
        return Wait(op=op, needs=world.ranks, any_of=True)
    return None


def describe_pending(call: Call, known: LookCache | None = None) -> Wait:
    """What an op that is not complete needs."""
    needs, any_of = needs_of(call, known)
    shown = parts_of(call)[0] if call.parts_left and parts_of(call) else call
    op = describe_call(shown, known)
    taken = _taken_before(shown, op)
    near = _near_misses(shown) if shown.number is None else ()
    near = near if taken is None else (taken, *near)
    return Wait(op, needs, any_of=any_of, near=near, robbed=taken is not None)


def _taken_before(call: Call, op: Op) -> str | None:
    """What is to be said if a receive from any source had the message of this one."""
    if call.name != "recv" or call.peer is None:
        return None
    taken = call.assembly.notes.get("message-race", {}).get((call.member, call.tag), ())
    return hint_taken(taken, op) if taken else None


def needs_of(call: Call, known: LookCache | None = None) -> tuple[tuple[int, ...], bool]:
    """The ranks that an op needs, and whether any one of them is enough. No ranks, and not
    any: it is about to complete."""
    met = call.assembly
    if call.parts_left:
        parts = [needs_of(part, known) for part in parts_of(call)]
        one_of = [part for part in parts if part[1]]
        return one_of[0] if one_of else (tuple({r for needs, _ in parts for r in needs}), False)
    if call.done:
        return (), False
    if call.number is not None:
        slot = met.slots.get(call.number)
        return ((known or LookCache()).missing(met, slot) if slot is not None else ()), False
    if call.name == "send" and call.peer is not None:
        pending = met.sends.get(call.peer, ())
    else:
        pending = met.receives.get(call.member, ())
    if call not in pending:
        return (), False  # it has met its counterpart, and is put off
    if call.peer is not None:
        return (met.ranks[call.peer],), False
    return (*met.ranks[: call.member], *met.ranks[call.member + 1 :]), True


def parts_of(call: Call) -> list[Call]:
    """What is left of a coalesced batch."""
    return [part for part in call.assembly.open_calls() if part.whole is call]


@cache
def everyone(size: int) -> tuple[int, ...]:
    return tuple(range(size))


def _near_misses(call: Call) -> tuple[str, ...]:
    """Pending messages between the same two ranks that do not fit."""
    met = call.assembly
    me = met.ranks[call.member]
    texts = []
    if call.name == "recv":
        for send in met.sends.get(call.member, ()):
            if send.tag != call.tag:
                sender = met.ranks[send.member]
                texts.append(
                    f"rank {sender} sent tag {send.tag}; rank {me} waits for tag {call.tag}"
                )
    elif call.peer is not None:
        for receive in met.receives.get(call.peer, ()):
            if receive.tag != call.tag and receive.peer in (None, call.member):
                other = met.ranks[call.peer]
                texts.append(
                    f"rank {me} sent tag {call.tag}; rank {other} waits for tag {receive.tag}"
                )
    return tuple(texts)


def specs_of(tensors: Any) -> tuple[TensorSpec, ...]:
    found: list[TensorSpec] = []
    for item in tensors:
        if isinstance(item, Tensor):
            dtype = str(item.dtype).removeprefix("torch.")
            strides = order_of(item) or ()
            found.append(TensorSpec(dtype, tuple(item.shape), str(item.device), strides))
        else:
            found.extend(specs_of(item))
    return tuple(found)
