"""Messages between two ranks: spellings, tags, any source, batches, order."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.conformance.case_context import GROUPS, Context, WrongData
from phalanx.conformance.case_tensors import place
from phalanx.conformance.family import Family

family = Family("point_to_point")
cases, PROGRAMS = family.cases, family.programs

SPELLINGS = ("global", "group")
SHAPES = ("full", "sub")


def full(me: Context, value: float, count: int = 3) -> Tensor:
    return torch.full((count,), float(value), device=me.device)


def spelled(word: str, spelling: str, group_rank: int, members: list[int]) -> dict[str, Any]:
    if spelling == "group":
        return {f"group_{word}": group_rank}
    return {word: members[group_rank]}


@family.case(
    "send",
    "to the last",
    over={"spelling": SPELLINGS, "group": SHAPES},
    least=3,
)
def send_to_last(me: Context, spelling: str, group: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    last = len(members) - 1
    if me.rank == members[0]:
        dist.send(full(me, 4), group=handle, **spelled("dst", spelling, last, members))
    elif me.rank == members[last]:
        room = full(me, -1)
        source = dist.recv(room, group=handle, **spelled("src", spelling, 0, members))
        me.equal(room, torch.full((3,), 4.0), "message")
        me.equal(source, members[0], "what recv returns")


@family.case(
    "isend",
    "exchange",
    over={"spelling": SPELLINGS, "group": SHAPES},
    least=3,
)
def exchange(me: Context, spelling: str, group: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    if me.rank not in members[:2]:
        return
    other = 1 - members.index(me.rank)
    room = full(me, -1)
    works = [
        dist.isend(full(me, me.rank), group=handle, **spelled("dst", spelling, other, members)),
        dist.irecv(room, group=handle, **spelled("src", spelling, other, members)),
    ]
    for work in works:
        assert work is not None
        work.wait()
    me.equal(room, torch.full((3,), float(members[other])), "message")


@family.case("recv", "from any source", over={"group": SHAPES}, least=3, needs="any source")
def from_any_source(me: Context, group: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    if me.rank not in members:
        return
    if me.rank != members[0]:
        dist.send(full(me, me.rank), members[0], group=handle)
        return
    seen = set()
    for _ in members[1:]:
        room = full(me, -1)
        source = dist.recv(room, group=handle)
        me.equal(room, torch.full((3,), float(source)), f"message of rank {source}")
        seen.add(source)
    me.equal(seen, set(members[1:]), "who sent")


@family.case("irecv", "from any source", least=2, needs="any source")
def irecv_from_any_source(me: Context) -> None:
    group = me.fresh()
    if me.rank:
        dist.send(full(me, me.rank), 0, group=group)
        return
    rooms = [full(me, -1) for _ in range(me.size - 1)]
    works = [dist.irecv(room, group=group) for room in rooms]
    for work in works:
        assert work is not None
        work.wait()
    found = sorted(float(room[0]) for room in rooms)
    me.equal(found, [float(rank) for rank in range(1, me.size)], "messages")


@family.case("recv", "from any source by tag", least=2, needs="any source")
def any_source_by_tag(me: Context) -> None:
    group = me.fresh()
    if me.rank == 1:
        works = [dist.isend(full(me, tag), 0, group=group, tag=tag) for tag in (1, 2)]
        for work in works:
            assert work is not None
            work.wait()
    elif me.rank == 0:
        for tag in (2, 1):
            room = full(me, -1)
            me.equal(dist.recv(room, group=group, tag=tag), 1, "source")
            me.equal(room, torch.full((3,), float(tag)), f"message with tag {tag}")


@family.case("isend", "tags", over={"order": ("in order", "reverse")}, least=2, needs="tags")
def tags(me: Context, order: str) -> None:
    right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    numbers = list(range(5)) if order == "in order" else list(range(5))[::-1]
    rooms = {tag: full(me, -1) for tag in numbers}
    works = [dist.isend(full(me, 10 * me.rank + tag), right, tag=tag) for tag in range(5)]
    works += [dist.irecv(rooms[tag], left, tag=tag) for tag in numbers]
    for work in works:
        assert work is not None
        work.wait()
    for tag, room in rooms.items():
        me.equal(room, torch.full((3,), float(10 * left + tag)), f"tag {tag}")


@family.case("isend", "order with one tag", over={"count": (3, 20)}, least=2)
def order_with_one_tag(me: Context, count: int) -> None:
    if me.rank == 0:
        works = [dist.isend(full(me, index), 1) for index in range(count)]
        for work in works:
            assert work is not None
            work.wait()
    elif me.rank == 1:
        for index in range(count):
            room = full(me, -1)
            dist.recv(room, 0)
            me.equal(room, torch.full((3,), float(index)), f"message {index}")


@family.case(
    "batch_isend_irecv",
    "ring",
    over={"spelling": SPELLINGS},
    least=2,
)
def batch_ring(me: Context, spelling: str) -> None:
    right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    room = full(me, -1)

    def peer(rank: int) -> dict[str, Any]:
        return {"group_peer": rank} if spelling == "group" else {"peer": rank}

    operations = [
        dist.P2POp(dist.isend, full(me, me.rank), **peer(right)),
        dist.P2POp(dist.irecv, room, **peer(left)),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    me.equal(room, torch.full((3,), float(left)), "message")


@family.case("batch_isend_irecv", "both ways with tags", least=2, needs="tags")
def batch_both_ways(me: Context) -> None:
    right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    rooms = [full(me, -1), full(me, -1)]
    operations = [
        dist.P2POp(dist.irecv, rooms[0], left, tag=1),
        dist.P2POp(dist.irecv, rooms[1], right, tag=2),
        dist.P2POp(dist.isend, full(me, me.rank), right, tag=1),
        dist.P2POp(dist.isend, full(me, -me.rank), left, tag=2),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    me.equal(rooms[0], torch.full((3,), float(left)), "from the left")
    me.equal(rooms[1], torch.full((3,), float(-right)), "from the right")


@family.case("batch_isend_irecv", "only some ranks", least=3)
def batch_of_some(me: Context) -> None:
    if me.rank > 1:
        return
    other, room = 1 - me.rank, full(me, -1)
    operations = [
        dist.P2POp(dist.isend, full(me, me.rank), other),
        dist.P2POp(dist.irecv, room, other),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    me.equal(room, torch.full((3,), float(other)), "message")


@family.case("batch_isend_irecv", "in a group", least=3)
def batch_in_group(me: Context) -> None:
    handle, members = me.group("sub"), GROUPS["sub"](me.size)[0]
    if me.rank not in members:
        return
    here = members.index(me.rank)
    right, left = members[(here + 1) % len(members)], members[here - 1]
    room = full(me, -1)
    operations = [
        dist.P2POp(dist.isend, full(me, me.rank), right, group=handle),
        dist.P2POp(dist.irecv, room, left, group=handle),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    me.equal(room, torch.full((3,), float(left)), "message")


@family.case("recv", "into", over={"layout": ("view",), "count": (0, 1, 5, 70_000)}, least=2)
def recv_into(me: Context, layout: str, count: int) -> None:
    if me.rank == 0:
        dist.send(torch.arange(float(count), device=me.device), 1)
    elif me.rank == 1:
        placed = place(torch.full((count,), -1.0), layout, me.device)
        dist.recv(placed.tensor, 0)
        me.equal(placed.tensor, torch.arange(float(count)), "message")
        if not placed.is_guard_intact():
            raise WrongData("wrote outside of the tensor")


@family.case("send", "everyone to everyone", least=2)
def everyone_to_everyone(me: Context) -> None:
    others = [rank for rank in range(me.size) if rank != me.rank]
    rooms = {rank: full(me, -1) for rank in others}
    works: list[Any] = [dist.irecv(rooms[rank], rank) for rank in others]
    works += [dist.isend(full(me, 10 * me.rank + rank), rank) for rank in others]
    for work in works:
        work.wait()
    for rank, room in rooms.items():
        me.equal(room, torch.full((3,), float(10 * rank + me.rank)), f"from rank {rank}")


@family.case("send", "there and back", over={"times": (1, 10)}, least=2)
def there_and_back(me: Context, times: int) -> None:
    last = me.size - 1
    tensor = full(me, 0)
    for _ in range(times):
        if me.rank == 0:
            tensor += 1
            dist.send(tensor, last)
            dist.recv(tensor, last)
        elif me.rank == last:
            dist.recv(tensor, 0)
            tensor += 1
            dist.send(tensor, 0)
    if me.rank == 0:
        me.equal(tensor, torch.full((3,), 2.0 * times), "counted")


@family.case("send", "another group with the same tag", least=2)
def groups_are_apart(me: Context) -> None:
    """Messages of one group are not found by receives of another."""
    one, other = me.fresh(), me.fresh()
    if me.rank == 0:
        works = [dist.isend(full(me, 1), 1, group=one), dist.isend(full(me, 2), 1, group=other)]
        for work in works:
            assert work is not None
            work.wait()
    elif me.rank == 1:
        for handle, value in ((other, 2.0), (one, 1.0)):
            room = full(me, -1)
            dist.recv(room, 0, group=handle)
            me.equal(room, torch.full((3,), value), "message")


@family.case("send", "not in the group", least=3)
def send_from_outside(me: Context) -> None:
    """A rank that is not in the group gets a warning, and nothing happens."""
    handle = me.group("sub")
    if me.rank == 0:
        me.check(dist.isend(full(me, 1), 1, group=handle) is None, "isend returned something")
        me.check(dist.irecv(full(me, 1), 1, group=handle) is None, "irecv returned something")
