"""From calls in flight to the words of `phalanx.model`. Used by checks and by snapshots."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from phalanx.backend.reduction import NAMES
from phalanx.backend.store import StoreWait
from phalanx.callsite import resolve
from phalanx.core.baton import Strand
from phalanx.core.meeting import Assembly, Call, Past
from phalanx.model import Group, Op, TensorSpec, Wait


def group_of(met: Assembly) -> Group:
    return Group(met.name, met.ranks)


def describe_call(call: Call) -> Op:
    met = call.assembly
    splits = call.facts or ((), ())
    return Op(
        rank=met.ranks[call.member],
        name=call.name,
        group=group_of(met),
        number=call.number,
        root=None if call.root is None else met.ranks[call.root],
        reduce_op=NAMES[call.op[0]] if call.op is not None else None,
        peer=None if call.peer is None else met.ranks[call.peer],
        tag=call.tag,
        inputs=_specs(call.inputs),
        outputs=_specs(call.outputs),
        input_splits=splits[0],
        output_splits=splits[1],
        site=resolve(call.mark),
    )


def describe_past(met: Assembly, rank: int, past: Past) -> Op:
    number, name, op, root, mark = past
    return Op(
        rank=rank,
        name=name,
        group=group_of(met),
        number=number,
        root=None if root is None else met.ranks[root],
        reduce_op=NAMES[op[0]] if op is not None else None,
        site=resolve(mark),
    )


def describe_wait(strand: Strand, size: int) -> Wait | None:
    """What a parked strand needs, None if it waits for time only."""
    why = strand.why
    if isinstance(why, Call):
        return describe_pending(why)
    if isinstance(why, StoreWait):
        world = Group("world", tuple(range(size)))
        op = Op(
            rank=strand.rank,
            name=why.call,
            group=world,
            key=", ".join(why.keys),
            site=resolve(why.mark),
        )
        others = tuple(rank for rank in range(size) if rank != strand.rank)
        return Wait(op=op, needs=others, any_of=True)
    return None


def describe_pending(call: Call) -> Wait:
    """What an op that is not complete needs."""
    met = call.assembly
    op = describe_call(call)
    if call.number is not None:
        slot = met.slots.get(call.number)
        missing = [
            met.ranks[member]
            for member, there in enumerate(slot.calls if slot else ())
            if there is None
        ]
        return Wait(op=op, needs=tuple(missing))
    if call.peer is not None:
        return Wait(op=op, needs=(met.ranks[call.peer],), near=_near_misses(call))
    others = tuple(rank for rank in met.ranks if rank != op.rank)
    return Wait(op=op, needs=others, any_of=True, near=_near_misses(call))


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


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    found: list[TensorSpec] = []
    for item in tensors:
        if isinstance(item, Tensor):
            dtype = str(item.dtype).removeprefix("torch.")
            found.append(TensorSpec(dtype, tuple(item.shape), str(item.device)))
        else:
            found.extend(_specs(item))
    return tuple(found)
