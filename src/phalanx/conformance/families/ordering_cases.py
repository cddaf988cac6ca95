"""Several operations in flight at once: they must not disturb each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.conformance.case_context import Context
from phalanx.conformance.family import Family

family = Family("ordering")
cases, PROGRAMS = family.cases, family.programs

COUNTS = (2, 8, 40)
ORDERS = ("in order", "reverse", "odd first")


def ordered(things: list[Any], order: str) -> list[Any]:
    if order == "reverse":
        return things[::-1]
    return things[1::2] + things[::2] if order == "odd first" else things


def full(me: Context, value: float, count: int = 3) -> Tensor:
    return torch.full((count,), float(value), device=me.device)


@family.case("ordering", "all_reduces", over={"count": COUNTS, "order": ORDERS})
def many_all_reduces(me: Context, count: int, order: str) -> None:
    found = [full(me, index + me.rank) for index in range(count)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in found]
    for work in ordered(works, order):
        work.wait()
    spread = sum(range(me.size))
    for index, tensor in enumerate(found):
        me.equal(tensor, torch.full((3,), float(index * me.size + spread)), f"number {index}")


@family.case("ordering", "broadcasts of all roots", over={"count": COUNTS, "order": ORDERS})
def many_broadcasts(me: Context, count: int, order: str) -> None:
    found = [full(me, 100 * me.rank + index) for index in range(count)]
    works = [
        dist.broadcast(tensor, src=index % me.size, async_op=True)
        for index, tensor in enumerate(found)
    ]
    for work in ordered(works, order):
        work.wait()
    for index, tensor in enumerate(found):
        wanted = float(100 * (index % me.size) + index)
        me.equal(tensor, torch.full((3,), wanted), f"number {index}")


@family.case("ordering", "different operations", over={"order": ORDERS})
def different_operations(me: Context, order: str) -> None:
    size = me.size
    total, first = full(me, me.rank), full(me, me.rank + 7)
    rooms = [full(me, -1) for _ in range(size)]
    part = full(me, -1)
    swapped = torch.zeros(size, device=me.device)
    works = [
        dist.all_reduce(total, async_op=True),
        dist.broadcast(first, src=size - 1, async_op=True),
        dist.all_gather(rooms, full(me, me.rank), async_op=True),
        dist.reduce_scatter(part, [full(me, rank) for rank in range(size)], async_op=True),
        dist.all_to_all_single(
            swapped,
            torch.arange(float(size), device=me.device) + 10 * me.rank,
            async_op=True,
        ),
        dist.barrier(async_op=True),
    ]
    for work in ordered(works, order):
        work.wait()
    me.equal(total, torch.full((3,), float(sum(range(size)))), "all_reduce")
    me.equal(first, torch.full((3,), float(size + 6)), "broadcast")
    me.equal(rooms, [torch.full((3,), float(rank)) for rank in range(size)], "all_gather")
    me.equal(part, torch.full((3,), float(me.rank * size)), "reduce_scatter")
    wanted = torch.arange(float(size)) * 10 + me.rank
    me.equal(swapped, wanted, "all_to_all_single")


@family.case("ordering", "two groups", over={"order": ORDERS}, least=2)
def two_groups(me: Context, order: str) -> None:
    """The same members twice: operations of one group do not count in the other."""
    one, other = me.fresh(), me.fresh()
    found = [full(me, index) for index in range(6)]
    works = []
    for index, tensor in enumerate(found):
        works.append(dist.all_reduce(tensor, group=(one, other)[index % 2], async_op=True))
    for work in ordered(works, order):
        work.wait()
    for index, tensor in enumerate(found):
        me.equal(tensor, torch.full((3,), float(index * me.size)), f"number {index}")


@family.case("ordering", "two groups in different order", least=2)
def two_groups_crossed(me: Context) -> None:
    """Ranks may start operations of different groups in different order."""
    one, other = me.fresh(), me.fresh()
    sums, firsts = full(me, me.rank), full(me, me.rank)
    steps: list[Any] = [
        lambda: dist.all_reduce(sums, group=one, async_op=True),
        lambda: dist.broadcast(firsts, src=0, group=other, async_op=True),
    ]
    works = [step() for step in (steps if me.rank % 2 else steps[::-1])]
    for work in works:
        work.wait()
    me.equal(sums, torch.full((3,), float(sum(range(me.size)))), "all_reduce")
    me.equal(firsts, torch.zeros(3), "broadcast")


@family.case("ordering", "overlapping groups", over={"order": ORDERS}, least=3)
def overlapping_groups(me: Context, order: str) -> None:
    handles = me.groups("overlapping")
    members = [range(me.size - 1), range(1, me.size)]
    mine = [index for index in range(2) if me.rank in members[index]]
    found = {index: full(me, me.rank + 10 * index) for index in mine}
    works = [
        dist.all_reduce(found[index], group=handles[index], async_op=True) for index in mine
    ]
    for work in ordered(works, order):
        work.wait()
    for index in mine:
        wanted = float(sum(rank + 10 * index for rank in members[index]))
        me.equal(found[index], torch.full((3,), wanted), f"group {index}")


@family.case("ordering", "a chain on one tensor", over={"length": (2, 5)})
def chain(me: Context, length: int) -> None:
    """Each operation takes what the one before gave."""
    tensor = full(me, 1)
    for _ in range(length):
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
    me.equal(tensor, torch.full((3,), float(me.size**length)), "the last sum")


@family.case("ordering", "messages among collectives", least=2)
def messages_among_collectives(me: Context) -> None:
    right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    room, total = full(me, -1), full(me, me.rank)
    received = dist.irecv(room, left, tag=8)
    reduced = dist.all_reduce(total, async_op=True)
    sent = dist.isend(full(me, me.rank), right, tag=8)
    for work in (reduced, sent, received):
        assert work is not None
        work.wait()
    me.equal(room, torch.full((3,), float(left)), "message")
    me.equal(total, torch.full((3,), float(sum(range(me.size)))), "all_reduce")


@family.case("ordering", "asynchronous before synchronous")
def asynchronous_before_synchronous(me: Context) -> None:
    later, now = full(me, 1), full(me, 2)
    work = dist.all_reduce(later, async_op=True)
    dist.all_reduce(now)
    me.equal(now, torch.full((3,), 2.0 * me.size), "the synchronous one")
    work.wait()
    me.equal(later, torch.full((3,), float(me.size)), "the asynchronous one")


@family.case("ordering", "input free after wait")
def input_free_after_wait(me: Context) -> None:
    """What was brought may be overwritten as soon as the wait is over."""
    mine = full(me, me.rank)
    rooms = [full(me, -1) for _ in range(me.size)]
    dist.all_gather(rooms, mine, async_op=True).wait()
    mine.fill_(99)
    dist.barrier()
    me.equal(rooms, [torch.full((3,), float(rank)) for rank in range(me.size)], "all_gather")


@family.case("ordering", "late ranks", over={"late": ("first", "last")}, least=2)
def late_ranks(me: Context, late: str) -> None:
    """One rank comes long after the others."""
    slow = 0 if late == "first" else me.size - 1
    if me.rank == slow:
        for _ in range(200):
            torch.ones(50).sum()
    tensor = full(me, 1)
    dist.all_reduce(tensor)
    me.equal(tensor, torch.full((3,), float(me.size)), "all_reduce")
