"""Groups: making, asking, using and destroying them; device meshes; groups called directly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.conformance.case_context import GROUPS, Context
from phalanx.conformance.family import Family

family = Family("groups")
cases, PROGRAMS = family.cases, family.programs

d: Any = dist
OUTSIDER = dist.GroupMember.NON_GROUP_MEMBER


def full(me: Context, value: float, count: int = 2) -> Tensor:
    return torch.full((count,), float(value), device=me.device)


def total(me: Context, group: Any, members: list[int]) -> None:
    """The group works: the sum covers its members and no other rank."""
    if me.rank in members:
        tensor = full(me, me.rank + 1)
        dist.all_reduce(tensor, group=group)
        wanted = float(sum(rank + 1 for rank in members))
        me.equal(tensor, torch.full((2,), wanted), f"sum in group {members}")


@family.case(
    "new_group",
    "of",
    over={"which": ("all", "none given", "even", "last", "backwards")},
)
def new_group_of(me: Context, which: str) -> None:
    everyone = list(range(me.size))
    given: dict[str, Any] = {
        "all": everyone,
        "none given": None,
        "even": everyone[::2],
        "last": everyone[-1:],
        "backwards": everyone[::-1],
    }
    ranks = given[which]
    group = me.fresh(ranks)
    members = sorted(everyone if ranks is None else ranks)
    me.check((group is OUTSIDER) == (me.rank not in members), "who is a member")
    me.equal(dist.get_process_group_ranks(group), members, "get_process_group_ranks")
    total(me, group, members)


@family.case("new_group", "many", over={"count": (3, 12)})
def many_groups(me: Context, count: int) -> None:
    made = [me.fresh() for _ in range(count)]
    for group in made[::-1]:
        total(me, group, list(range(me.size)))


@family.case("new_group", "group_desc")
def group_desc(me: Context) -> None:
    group = me.fresh(group_desc="for a case")
    me.equal(group.group_desc, "for a case", "group_desc")
    me.check(len(group.group_name) > 0, "no group_name")


@family.case("new_group", "timeout")
def group_timeout(me: Context) -> None:
    total(me, me.fresh(timeout=timedelta(seconds=3)), list(range(me.size)))


@family.case("new_group", "backend")
def group_backend(me: Context) -> None:
    group = me.fresh(backend=me.backend)
    me.equal(dist.get_backend(group), me.backend, "get_backend")
    total(me, group, list(range(me.size)))


@family.case(
    "get_rank",
    "in groups",
    over={"group": ("full", "sub", "single")},
    least=3,
)
def rank_in_group(me: Context, group: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    member = me.rank in members
    me.equal(dist.get_rank(handle), members.index(me.rank) if member else -1, "get_rank")
    me.equal(dist.get_world_size(handle), len(members) if member else -1, "get_world_size")


@family.case(
    "get_group_rank",
    "translate",
    over={"group": ("sub", "single")},
    least=3,
)
def translate(me: Context, group: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    for here, everywhere in enumerate(members):
        me.equal(dist.get_group_rank(handle, everywhere), here, "get_group_rank")
        me.equal(dist.get_global_rank(handle, here), everywhere, "get_global_rank")
    me.equal(dist.get_process_group_ranks(handle), members, "get_process_group_ranks")
    me.equal(dist.get_process_group_ranks(None), list(range(me.size)), "of the default group")


@family.case(
    "get_backend",
    "of groups",
    least=3,
)
def backend_of_groups(me: Context) -> None:
    me.equal(dist.get_backend(), me.backend, "get_backend")
    me.check(me.backend in dist.get_backend_config(), "the backend is not in the configuration")
    me.check(dist.get_pg_count() >= 1, "no groups are counted")
    me.equal(d.Backend(me.backend.upper()), me.backend, "Backend(NAME)")
    if me.rank in GROUPS["sub"](me.size)[0]:
        me.equal(dist.get_backend(me.group("sub")), me.backend, "get_backend of a subgroup")
    else:
        outside = me.group("sub")
        me.raises((ValueError, AssertionError), lambda: dist.get_backend(outside), "outside")


@family.case("get_pg_count", "grows")
def pg_count(me: Context) -> None:
    before = dist.get_pg_count()
    me.fresh()
    me.equal(dist.get_pg_count(), before + 1, "get_pg_count")


@family.case("new_subgroups", "of size", over={"size": (1, 2)})
def subgroups(me: Context, size: int) -> None:
    if me.size % size:
        size = me.size
    mine, everyone = d.new_subgroups(group_size=size)
    me.equal(len(everyone), me.size // size, "number of groups")
    first = me.rank - me.rank % size
    total(me, mine, list(range(first, first + size)))
    _destroy(everyone)


@family.case(
    "new_subgroups_by_enumeration",
    "every other",
    least=2,
)
def subgroups_by_enumeration(me: Context) -> None:
    everyone = list(range(me.size))
    mine, made = d.new_subgroups_by_enumeration([everyone[::2], everyone[1::2]])
    me.equal(len(made), 2, "number of groups")
    total(me, mine, everyone[me.rank % 2 :: 2])
    _destroy(made)


@family.case(
    "new_subgroups_by_enumeration",
    "somebody left out",
    least=2,
)
def subgroups_without_one(me: Context) -> None:
    mine, made = d.new_subgroups_by_enumeration([list(range(1, me.size))])
    if me.rank == 0:
        me.check(mine is None or mine is OUTSIDER, f"rank 0 got {mine!r}")
    else:
        total(me, mine, list(range(1, me.size)))
    _destroy(made)


def _destroy(groups: list[Any]) -> None:
    for group in groups:
        if group is not OUTSIDER:
            dist.destroy_process_group(group)


@family.case("destroy_process_group", "one of several")
def destroy_one(me: Context) -> None:
    one, other = me.fresh(), me.fresh()
    dist.destroy_process_group(one)
    me.raises(ValueError, lambda: dist.get_rank(one), "get_rank of a destroyed group")
    me.raises(ValueError, lambda: dist.destroy_process_group(one), "destroying it again")
    total(me, other, list(range(me.size)))
    total(me, None, list(range(me.size)))


@family.case(
    "destroy_process_group",
    "and make again",
    over={"times": (3,)},
)
def destroy_and_make(me: Context, times: int) -> None:
    for _ in range(times):
        group = dist.new_group()
        total(me, group, list(range(me.size)))
        dist.destroy_process_group(group)


DIRECT: dict[str, Callable[[Context, Any], None]] = {}


def direct(function: Callable[[Context, Any], None]) -> Callable[[Context, Any], None]:
    DIRECT[function.__name__] = function
    return function


@direct
def allreduce(me: Context, group: Any) -> None:
    wanted = torch.full((2,), float(sum(range(1, me.size + 1))))
    one, other = full(me, me.rank + 1), full(me, me.rank + 1)
    group.allreduce([one]).wait()
    group.allreduce(other).wait()
    me.equal([one, other], [wanted, wanted], "allreduce of a list and of a tensor")
    tensor = full(me, me.rank + 1)
    group.allreduce(tensor, dist.ReduceOp.MAX).wait()
    me.equal(tensor, torch.full((2,), float(me.size)), "allreduce with MAX")


@direct
def broadcast(me: Context, group: Any) -> None:
    tensor = full(me, me.rank)
    group.broadcast(tensor, me.size - 1).wait()
    me.equal(tensor, torch.full((2,), float(me.size - 1)), "broadcast")


@direct
def reduce(me: Context, group: Any) -> None:
    tensor = full(me, me.rank + 1)
    group.reduce(tensor, 0).wait()
    if me.rank == 0:
        me.equal(tensor, torch.full((2,), float(sum(range(1, me.size + 1)))), "reduce")


@direct
def allgather(me: Context, group: Any) -> None:
    rooms = [full(me, -1) for _ in range(me.size)]
    group.allgather(rooms, full(me, me.rank)).wait()
    me.equal(rooms, [torch.full((2,), float(rank)) for rank in range(me.size)], "allgather")


@direct
def gather(me: Context, group: Any) -> None:
    rooms = [full(me, -1) for _ in range(me.size)]
    group.gather([rooms] if me.rank == 0 else [], [full(me, me.rank)]).wait()
    if me.rank == 0:
        me.equal(rooms, [torch.full((2,), float(rank)) for rank in range(me.size)], "gather")


@direct
def scatter(me: Context, group: Any) -> None:
    room = full(me, -1)
    given = [[full(me, rank) for rank in range(me.size)]] if me.rank == 0 else []
    group.scatter([room], given).wait()
    me.equal(room, torch.full((2,), float(me.rank)), "scatter")


@direct
def reduce_scatter(me: Context, group: Any) -> None:
    room = full(me, -1)
    group.reduce_scatter([room], [[full(me, rank) for rank in range(me.size)]]).wait()
    me.equal(room, torch.full((2,), float(me.rank * me.size)), "reduce_scatter")


@direct
def alltoall_base(me: Context, group: Any) -> None:
    room = torch.zeros(me.size, device=me.device)
    sent = torch.arange(float(me.size), device=me.device) + 10 * me.rank
    group.alltoall_base(room, sent, [], []).wait()
    me.equal(room, torch.arange(float(me.size)) * 10 + me.rank, "alltoall_base")


@direct
def barrier(me: Context, group: Any) -> None:
    group.barrier().wait()


@direct
def send_and_recv(me: Context, group: Any) -> None:
    if me.size == 1:
        return
    if me.rank == 0:
        group.send([full(me, 7)], me.size - 1, 0).wait()
    elif me.rank == me.size - 1:
        room = full(me, -1)
        group.recv([room], 0, 0).wait()
        me.equal(room, torch.full((2,), 7.0), "message")


@direct
def itself(me: Context, group: Any) -> None:
    me.equal((group.rank(), group.size()), (me.rank, me.size), "rank and size")
    me.equal(group.name(), me.backend, "name")
    me.check(isinstance(group, dist.ProcessGroup), "not a ProcessGroup")
    me.check(bool(group.group_name), "no group_name")


@family.case(
    "ProcessGroup",
    "called directly",
    over={"method": tuple(DIRECT)},
)
def called_directly(me: Context, method: str) -> None:
    DIRECT[method](me, dist.group.WORLD)


@family.case("ProcessGroup", "default group")
def default_group(me: Context) -> None:
    me.check(dist.GroupMember.WORLD is dist.group.WORLD, "two default groups")
    me.check(dist.is_initialized(), "not initialized")
    total(me, dist.group.WORLD, list(range(me.size)))


def mesh_of(me: Context, dimensions: int) -> Any:
    shape = {1: (me.size,), 2: (me.size // 2 or 1, 2), 3: (1, me.size // 2 or 1, 2)}[dimensions]
    if shape[-1] * (shape[-2] if dimensions > 1 else 1) != me.size:
        shape = (*(1,) * (dimensions - 1), me.size)
    names = ("a", "b", "c")[:dimensions]
    return d.init_device_mesh(me.device, shape, mesh_dim_names=names)


@family.case(
    "DeviceMesh",
    "dimensions",
    over={"dimensions": (1, 2, 3)},
)
def mesh_dimensions(me: Context, dimensions: int) -> None:
    mesh = mesh_of(me, dimensions)
    me.equal(mesh.ndim, dimensions, "ndim")
    me.equal(mesh.size(), me.size, "size")
    table = mesh.mesh
    place = (table == me.rank).nonzero()[0].tolist()
    me.equal(list(mesh.get_coordinate()), place, "get_coordinate")
    me.equal(mesh.get_rank(), me.rank, "get_rank")
    for axis, name in enumerate(mesh.mesh_dim_names):
        line = [*place]
        members = []
        for index in range(table.shape[axis]):
            line[axis] = index
            members.append(int(table[tuple(line)]))
        me.equal(mesh.get_local_rank(name), place[axis], f"get_local_rank of {name}")
        group = mesh.get_group(name)
        me.equal(dist.get_process_group_ranks(group), members, f"group of {name}")
        total(me, group, members)


@family.case("DeviceMesh", "slicing", over={"dimensions": (2, 3)})
def mesh_slicing(me: Context, dimensions: int) -> None:
    mesh = mesh_of(me, dimensions)
    last = mesh.mesh_dim_names[-1]
    part = mesh[last]
    me.equal(part.mesh_dim_names, (last,), "names of a slice")
    me.equal(part.size(), mesh.size(dimensions - 1), "size of a slice")
    total(me, part.get_group(), part.mesh.tolist())


@family.case("DeviceMesh", "from a group")
def mesh_from_group(me: Context) -> None:
    mesh = d.DeviceMesh.from_group(me.fresh(), me.device)
    me.equal(mesh.size(), me.size, "size")
    total(me, mesh.get_group(), list(range(me.size)))
