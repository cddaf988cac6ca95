"""Functional collectives (traceable, they return new tensors) and their gradients; the
differentiable collectives of `torch.distributed.nn.functional`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.backend.torch_private import private
from phalanx.conformance.case_context import GROUPS, Context
from phalanx.conformance.family import Family

family = Family("functional")
cases, PROGRAMS = family.cases, family.programs

SHAPES = ("full", "sub")
OPS = ("sum", "avg", "max", "min", "product")


def seat(me: Context, group: str) -> tuple[Any, list[int]]:
    """The group to pass, and its members; the group is never None here."""
    handle = me.group(group)
    return (dist.group.WORLD if handle is None else handle), GROUPS[group](me.size)[0]


def mine(me: Context, *shape: int) -> Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(float(count), device=me.device) + 10 * me.rank + 1).reshape(shape)


def of(rank: int, *shape: int) -> Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(float(count)) + 10 * rank + 1).reshape(shape)


def combined(tensors: list[Tensor], op: str) -> Tensor:
    stacked = torch.stack(tensors)
    if op == "sum":
        return stacked.sum(0)
    if op == "avg":
        return stacked.mean(0)
    if op == "product":
        return stacked.prod(0)
    return stacked.amax(0) if op == "max" else stacked.amin(0)


@family.case(
    "functional.all_reduce",
    "of",
    over={"op": OPS, "group": SHAPES},
    least=3,
)
def all_reduce(me: Context, op: str, group: str) -> None:
    handle, members = seat(me, group)
    if me.rank not in members:
        return
    given = mine(me, 3)
    found = private.functional_collectives().all_reduce(given, op, handle)
    wanted = combined([of(rank, 3) for rank in members], op)
    me.equal(found + 0, wanted, "result", close=op == "avg")
    me.equal(given, of(me.rank, 3), "the input")


@family.case(
    "functional.all_gather_tensor",
    "along",
    over={"axis": (0, 1), "group": SHAPES},
    least=3,
)
def all_gather_tensor(me: Context, axis: int, group: str) -> None:
    handle, members = seat(me, group)
    if me.rank not in members:
        return
    functional = private.functional_collectives()
    found = functional.all_gather_tensor(mine(me, 2, 2), axis, handle)
    me.equal(found + 0, torch.cat([of(rank, 2, 2) for rank in members], axis), "result")


@family.case(
    "functional.reduce_scatter_tensor",
    "along",
    over={"axis": (0, 1), "group": SHAPES},
    least=3,
)
def reduce_scatter_tensor(me: Context, axis: int, group: str) -> None:
    handle, members = seat(me, group)
    if me.rank not in members:
        return
    size = len(members)
    functional = private.functional_collectives()
    found = functional.reduce_scatter_tensor(mine(me, size, size), "sum", axis, handle)
    whole = combined([of(rank, size, size) for rank in members], "sum")
    me.equal(found + 0, whole.chunk(size, axis)[members.index(me.rank)], "result")


@family.case(
    "functional.all_to_all_single",
    "splits",
    over={"even": (True, False), "group": SHAPES},
    least=3,
)
def all_to_all_single(me: Context, even: bool, group: str) -> None:
    handle, members = seat(me, group)
    if me.rank not in members:
        return
    here, size = members.index(me.rank), len(members)
    splits = [[1 if even else (a + b) % 3 for b in range(size)] for a in range(size)]
    given = mine(me, sum(splits[here]), 2)
    incoming = [splits[source][here] for source in range(size)]
    functional = private.functional_collectives()
    found = functional.all_to_all_single(
        given, None if even else incoming, None if even else splits[here], handle
    )
    pieces = []
    for rank, rows in zip(members, splits, strict=True):
        start = sum(rows[:here])
        pieces.append(of(rank, sum(rows), 2)[start : start + rows[here]])
    me.equal(found + 0, torch.cat(pieces), "result")


@family.case(
    "functional.broadcast",
    "of",
    over={"group": SHAPES},
    least=3,
)
def broadcast(me: Context, group: str) -> None:
    """The root counts inside of the group here."""
    handle, members = seat(me, group)
    if me.rank not in members:
        return
    found = private.functional_collectives().broadcast(mine(me, 3), len(members) - 1, handle)
    me.equal(found + 0, of(members[-1], 3), "result")


@family.case("functional.permute_tensor", "ring", least=2)
def permute_tensor(me: Context) -> None:
    ring = [(rank + 1) % me.size for rank in range(me.size)]
    found = private.functional_collectives().permute_tensor(mine(me, 3), ring, dist.group.WORLD)
    me.equal(found + 0, of((me.rank - 1) % me.size, 3), "result")


@family.case(
    "functional.coalesced",
    "of",
    over={"kind": ("all_reduce", "all_gather", "reduce_scatter")},
)
def coalesced(me: Context, kind: str) -> None:
    functional, world = private.functional_collectives(), dist.group.WORLD
    size, ranks = me.size, range(me.size)
    given = [mine(me, size), mine(me, 2 * size)]
    if kind == "all_reduce":
        found = functional.all_reduce_coalesced(given, "sum", world)
        wanted = [combined([of(r, size * k) for r in ranks], "sum") for k in (1, 2)]
    elif kind == "all_gather":
        found = functional.all_gather_into_tensor_coalesced(given, world)
        wanted = [torch.cat([of(r, size * k) for r in ranks]) for k in (1, 2)]
    else:
        found = functional.reduce_scatter_tensor_coalesced(given, "sum", [0, 0], world)
        wanted = [
            combined([of(r, size * k) for r in ranks], "sum").chunk(size)[me.rank]
            for k in (1, 2)
        ]
    me.equal([each + 0 for each in found], wanted, "result")


@family.case(
    "functional.wait_tensor",
    "many in flight",
    over={"count": (5,)},
)
def many_in_flight(me: Context, count: int) -> None:
    functional = private.functional_collectives()
    found = [
        functional.all_reduce(mine(me, 2) + i, "sum", dist.group.WORLD) for i in range(count)
    ]
    for index in reversed(range(count)):
        wanted = combined([of(rank, 2) + index for rank in range(me.size)], "sum")
        me.equal(functional.wait_tensor(found[index]), wanted, f"number {index}")


@family.case(
    "functional.autograd",
    "of",
    over={
        "kind": (
            "all_gather_tensor",
            "reduce_scatter_tensor",
            "all_to_all_single",
            "all_reduce",
        )
    },
    least=2,
)
def autograd(me: Context, kind: str) -> None:
    """The gradient of a gather is a scattered sum, and the other way round."""
    functional, world, size = private.functional_collectives(), dist.group.WORLD, me.size
    weights = {rank: of(rank, size) for rank in range(size)}
    if kind == "all_gather_tensor":
        given = mine(me, 1).requires_grad_()
        out = functional.all_gather_tensor_autograd(given, 0, world)
        wanted = combined([*weights.values()], "sum")[me.rank : me.rank + 1]
    elif kind == "reduce_scatter_tensor":
        given = mine(me, size).requires_grad_()
        out = functional.reduce_scatter_tensor_autograd(given, "sum", 0, world)
        weights = {rank: weights[rank][:1] for rank in range(size)}
        wanted = torch.cat([weights[rank] for rank in range(size)])
    elif kind == "all_to_all_single":
        given = mine(me, size).requires_grad_()
        ones = [1] * size
        out = functional.all_to_all_single_autograd(given, ones, ones, world)
        wanted = torch.stack([weights[rank][me.rank] for rank in range(size)])
    else:
        given = mine(me, size).requires_grad_()
        out = import_module("torch.distributed.nn.functional").all_reduce(given)
        wanted = combined([*weights.values()], "sum")
    (out * weights[me.rank].to(me.device)).sum().backward()
    me.equal(given.grad, wanted, "gradient")


DIFFERENTIABLE = (
    "broadcast",
    "gather",
    "scatter",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "all_to_all_single",
    "all_reduce",
)


@family.case(
    "nn.functional",
    "of",
    over={"kind": DIFFERENTIABLE},
    least=2,
)
def differentiable(me: Context, kind: str) -> None:
    """Each rank weighs its results by rank + 1; what comes back says where they came from."""
    module: Any = import_module("torch.distributed.nn.functional")
    size, ranks, last = me.size, range(me.size), me.size - 1
    factor, total = me.rank + 1.0, sum(rank + 1.0 for rank in range(me.size))
    ones = torch.ones(2)
    if kind in ("scatter", "reduce_scatter", "all_to_all"):
        given = [mine(me, 2).requires_grad_() for _ in ranks]
    elif kind == "all_to_all_single":
        given = [mine(me, 2 * size).requires_grad_()]
    else:
        given = [mine(me, 2).requires_grad_()]
    first = given[0]
    gradients: list[Tensor]
    if kind == "broadcast":
        out, wanted = [module.broadcast(first, last)], [of(last, 2)]
        gradients = [ones * total if me.rank == last else ones * 0]
    elif kind == "all_reduce":
        out, wanted = [module.all_reduce(first)], [combined([of(r, 2) for r in ranks], "sum")]
        gradients = [ones * total]
    elif kind == "reduce":
        out = [module.reduce(first, last)]
        wanted = [combined([of(r, 2) for r in ranks], "sum")] if me.rank == last else []
        gradients = [ones * size]
    elif kind == "gather":
        out = list(module.gather(first, last))
        wanted = [of(r, 2) for r in ranks] if me.rank == last else []
        gradients = [ones * size]
    elif kind == "scatter":
        out, wanted = [module.scatter(given, last)], [of(last, 2)]
        gradients = [ones * (r + 1.0) if me.rank == last else ones * 0 for r in ranks]
    elif kind == "reduce_scatter":
        out = [module.reduce_scatter(torch.zeros(2, device=me.device), given)]
        wanted = [combined([of(r, 2) for r in ranks], "sum")]
        gradients = [ones * (r + 1.0) for r in ranks]
    elif kind == "all_gather":
        out, wanted = list(module.all_gather(first)), [of(r, 2) for r in ranks]
        gradients = [ones * total]
    elif kind == "all_to_all":
        rooms = [torch.zeros(2, device=me.device) for _ in ranks]
        out, wanted = list(module.all_to_all(rooms, given)), [of(r, 2) for r in ranks]
        gradients = [ones * (r + 1.0) for r in ranks]
    else:
        room = torch.zeros(2 * size, device=me.device)
        out = [module.all_to_all_single(room, first)]
        wanted = [torch.cat([of(r, 2 * size).chunk(size)[me.rank] for r in ranks])]
        gradients = [torch.cat([ones * (r + 1.0) for r in ranks])]
    if wanted:
        me.equal([each.detach() for each in out], wanted, "result")
    weights = [torch.full(each.shape, factor, device=me.device) for each in out]
    torch.autograd.backward(out, weights)
    me.equal([each.grad for each in given], gradients, "gradient")
