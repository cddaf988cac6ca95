"""Describe the calls of the threads engine, which hold tensors and code marks. Used by checks
and by snapshots; what is the same for every engine is in `matching/descriptions.py`."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from phalanx.backend.collectives.call_signature import order_of
from phalanx.backend.group_history import CreationWait
from phalanx.backend.stores.init_meeting import InitWait
from phalanx.backend.stores.store import StoreWait
from phalanx.callsite import Mark, resolve
from phalanx.checks.message_race import hint_taken
from phalanx.core.strand import Strand
from phalanx.journal.events import REDUCE_OPS
from phalanx.matching import descriptions
from phalanx.matching.descriptions import CallReader
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.slots import Call
from phalanx.model import Group, Op, Site, TensorSpec, Wait


class TensorReader(CallReader):
    """Reads tensors, code marks and torch's reduce ops. Sites are resolved once for each mark:
    a thousand ranks are at few places."""

    def __init__(self) -> None:
        super().__init__()
        self._sites: dict[tuple[int, int], Site | None] = {}

    def site(self, mark: Mark | None) -> Site | None:
        if mark is None:
            return None
        key = id(mark[0]), mark[1]
        if key not in self._sites:
            self._sites[key] = resolve(mark)
        return self._sites[key]

    def reduce_op(self, op: Any) -> str | None:
        return REDUCE_OPS[op[0]] if op is not None else None

    def specs(self, tensors: Any) -> tuple[TensorSpec, ...]:
        return specs_of(tensors)

    def taken_before(self, call: Call, op: Op) -> str | None:
        if call.name != "recv" or call.peer is None:
            return None
        races = call.strand.local.session.races
        if races is None:
            return None
        return hint_taken(races.taken(call.mailbox.record, call.member, call.tag), op)


def group_of(met: GroupMailbox) -> Group:
    return Group(met.record.title, met.ranks)


def describe_call(call: Call, reader: TensorReader | None = None) -> Op:
    return descriptions.describe_call(call, reader or TensorReader())


def describe_pending(call: Call, reader: TensorReader | None = None) -> Wait:
    """What a call that is not complete needs."""
    return descriptions.describe_wait(call, reader or TensorReader())


def describe_wait(strand: Strand, size: int, reader: TensorReader) -> Wait | None:
    """What a parked strand needs, None if it waits for time only."""
    why = strand.why
    if isinstance(why, Call):
        return describe_pending(why, reader)
    if isinstance(why, (CreationWait, InitWait)):
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


@cache
def everyone(size: int) -> tuple[int, ...]:
    return tuple(range(size))


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
