"""Collectives of Python objects: an object that pickles is sent, any other is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from phalanx.conformance.case_context import GROUPS, Context
from phalanx.conformance.family import Family

family = Family("objects")
cases, PROGRAMS = family.cases, family.programs

KINDS = ("number", "text", "none", "nested", "instance", "tensor", "long", "by-rank", "error")
SHAPES = ("full", "sub", "single")
SPELLINGS = ("global", "group")


@dataclass(frozen=True)
class Thing:
    """An object of a class of our own."""

    name: str
    parts: tuple[int, ...]


def make(kind: str, rank: int) -> Any:
    """Differs from rank to rank; `by-rank` in size and type, too."""
    made: dict[str, Any] = {
        "number": rank * 7,
        "text": f"rank {rank} says \u00e9",
        "none": None,
        "nested": {"rank": [rank, {rank}], (rank,): {"deep": [None, 1.5]}},
        "instance": Thing(f"thing {rank}", (rank, rank + 1)),
        "tensor": [rank, rank * 2],
        "long": "x" * (50_000 + rank),
        "by-rank": list(range(rank)) if rank % 2 else {"only": "here" * rank},
        "error": ("ValueError", str(ValueError(rank))),
    }
    value = made[kind]
    return torch.tensor(value) if kind == "tensor" else value


def agree(me: Context, found: Any, expected: Any, what: str) -> None:
    if isinstance(expected, torch.Tensor):
        me.equal(found, expected, what)
    else:
        me.equal(type(found), type(expected), f"type of {what}")
        me.equal(found, expected, what)


def at_root(word: str, spelling: str, root: int, members: list[int]) -> dict[str, Any]:
    return {f"group_{word}": root} if spelling == "group" else {word: members[root]}


@family.case(
    "all_gather_object",
    "of",
    over={"kind": KINDS, "group": SHAPES},
    least=3,
)
def all_gather_object(me: Context, kind: str, group: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    if me.rank not in members:
        return
    found: list[Any] = [None] * len(members)
    dist.all_gather_object(found, make(kind, me.rank), group=handle)
    for rank, each in zip(members, found, strict=True):
        agree(me, each, make(kind, rank), f"object of rank {rank}")


@family.case(
    "gather_object",
    "of",
    over={"kind": KINDS, "group": SHAPES, "spelling": SPELLINGS},
    least=3,
)
def gather_object(me: Context, kind: str, group: str, spelling: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    if me.rank not in members:
        return
    root = len(members) - 1
    found: list[Any] | None = [None] * len(members) if me.rank == members[root] else None
    dist.gather_object(
        make(kind, me.rank), found, group=handle, **at_root("dst", spelling, root, members)
    )
    for rank, each in zip(members, found or [], strict=False):
        agree(me, each, make(kind, rank), f"object of rank {rank}")


@family.case(
    "scatter_object_list",
    "of",
    over={"kind": KINDS, "group": SHAPES, "spelling": SPELLINGS},
    least=3,
)
def scatter_object_list(me: Context, kind: str, group: str, spelling: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    if me.rank not in members:
        return
    root = len(members) - 1
    given = [make(kind, rank) for rank in members] if me.rank == members[root] else None
    found: list[Any] = [None]
    dist.scatter_object_list(
        found, given, group=handle, **at_root("src", spelling, root, members)
    )
    agree(me, found[0], make(kind, me.rank), "object")


@family.case(
    "broadcast_object_list",
    "of",
    over={"kind": KINDS, "group": SHAPES, "spelling": SPELLINGS},
    least=3,
)
def broadcast_object_list(me: Context, kind: str, group: str, spelling: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    if me.rank not in members:
        return
    root = len(members) - 1
    sent = [make(kind, 1), "and", make(kind, 2)]
    found = list(sent) if me.rank == members[root] else [None] * 3
    dist.broadcast_object_list(found, group=handle, **at_root("src", spelling, root, members))
    for each, expected in zip(found, sent, strict=True):
        agree(me, each, expected, "object")


@family.case("broadcast_object_list", "device")
def broadcast_on_device(me: Context) -> None:
    found = [{"a": 1}] if me.rank == 0 else [None]
    dist.broadcast_object_list(found, src=0, device=torch.device(me.device))
    me.equal(found, [{"a": 1}], "object")


@family.case(
    "send_object_list",
    "of",
    over={"kind": KINDS, "spelling": SPELLINGS},
    least=2,
)
def send_object_list(me: Context, kind: str, spelling: str) -> None:
    sent, last = [make(kind, 0), make(kind, 3)], me.size - 1
    everyone = list(range(me.size))
    if me.rank == 0:
        dist.send_object_list(sent, **at_root("dst", spelling, last, everyone))
    elif me.rank == last:
        found: list[Any] = [None, None]
        source = dist.recv_object_list(found, **at_root("src", spelling, 0, everyone))
        me.equal(source, 0, "what recv_object_list returns")
        for each, expected in zip(found, sent, strict=True):
            agree(me, each, expected, "object")


PICKLE_ERRORS = ("PicklingError", "AttributeError", "TypeError")


@family.case(
    "all_gather_object",
    "does not pickle",
    raises=PICKLE_ERRORS,
)
def gather_unpicklable(me: Context) -> None:
    found: list[Any] = [None] * me.size
    dist.all_gather_object(found, lambda: None)


@family.case(
    "gather_object",
    "does not pickle",
    raises=PICKLE_ERRORS,
)
def gather_object_unpicklable(me: Context) -> None:
    found: list[Any] | None = [None] * me.size if me.rank == 0 else None
    dist.gather_object(lambda: None, found, dst=0)


@family.case(
    "broadcast_object_list",
    "does not pickle",
    raises=PICKLE_ERRORS,
    least=2,
    everywhere=False,
    alone=True,
    ranks=(2, 3),
)
def broadcast_unpicklable(me: Context) -> None:
    group = me.fresh(timeout=me.short)
    found = [lambda: None] if me.rank == 0 else [None]
    dist.broadcast_object_list(found, src=0, group=group)


@family.case(
    "scatter_object_list",
    "does not pickle",
    raises=PICKLE_ERRORS,
    least=2,
    everywhere=False,
    alone=True,
    ranks=(2, 3),
)
def scatter_unpicklable(me: Context) -> None:
    group = me.fresh(timeout=me.short)
    given = [lambda: None] * me.size if me.rank == 0 else None
    dist.scatter_object_list([None], given, src=0, group=group)


@family.case(
    "scatter_object_list", "no room for the result", raises=("ValueError", "RuntimeError")
)
def scatter_without_room(me: Context) -> None:
    dist.scatter_object_list([], [None] * me.size, src=0)


@family.case("all_gather_object", "again and again", over={"times": (10,)})
def again_and_again(me: Context, times: int) -> None:
    for turn in range(times):
        found: list[Any] = [None] * me.size
        dist.all_gather_object(found, (turn, me.rank))
        me.equal(found, [(turn, rank) for rank in range(me.size)], f"turn {turn}")
