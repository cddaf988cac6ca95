"""Every collective as a row of a table: what a rank brings, how it calls, what it must get.

The test bodies run the rows with different data, dtypes, groups and reduce operations; the
expected results come from `reference.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.backend import reference

# torch before 2.13 has only the names that 2.13 warns about.
all_gather_flat = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_flat = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

FACTOR = 0.5

Make = Callable[[int, int], Tensor]
"""The tensor number `index` that a rank brings: `make(rank, index)`."""


@dataclass
class Member:
    """One rank of a group inside a test, and how it is to call."""

    group: Any
    rank: int
    size: int
    later: bool = False
    op: str = "SUM"
    made: list[tuple[Tensor, int]] = field(default_factory=list)

    @property
    def how(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.later}

    @property
    def reduce_op(self) -> Any:
        if self.op == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(FACTOR)
        return getattr(dist.ReduceOp, self.op)

    def room(self, like: Tensor, *shape: int) -> Tensor:
        """An output, full of what must be overwritten."""
        given = torch.empty_like(like) if not shape else like.new_empty(shape)
        given.fill_(99 if like.dtype != torch.bool else True)
        self.watch(given)
        return given

    def watch(self, tensor: Tensor) -> None:
        self.made.append((tensor, tensor._version))

    def finish(self, work: Any) -> None:
        """Wait if asynchronous; a synchronous call returns nothing."""
        assert (work is not None) == self.later
        if work is not None:
            work.wait()


@dataclass(frozen=True)
class Case:
    """`bring(make, rank, size)`, `call(member, brought)` and the results it must give.

    `joins` says that the pieces of the ranks are joined along their first dimension.
    """

    name: str
    bring: Callable[[Make, int, int], Any]
    call: Callable[[Member, Any], Any]
    expect: Callable[[list[Any], str], list[Any]]
    in_place: bool = False
    joins: bool = False
    reduces: bool = False
    deprecated: bool = False

    def __str__(self) -> str:
        return self.name


def one(make: Make, rank: int, size: int) -> Tensor:
    return make(rank, 0)


def several(make: Make, rank: int, size: int) -> list[Tensor]:
    return [make(rank, index) for index in range(size)]


def whole(make: Make, rank: int, size: int) -> Tensor:
    return joined(several(make, rank, size))


def joined(pieces: list[Tensor]) -> Tensor:
    """In one piece of memory: flat collectives divide the memory, not the dimensions."""
    rows = [piece if piece.dim() else piece.reshape(1) for piece in pieces]
    return torch.cat(rows).contiguous()


def more_for_later_ranks(make: Make, rank: int, size: int) -> Tensor:
    return joined([make(rank, index) for index in range(rank + 1)])


def uneven(make: Make, rank: int, size: int) -> Tensor:
    piece = make(rank, 0)
    rows = sum(uneven_splits(piece, size)[rank])
    return torch.cat([piece] * (2 * size + 1))[:rows]


def uneven_splits(piece: Tensor, size: int) -> list[list[int]]:
    """Rows from each rank to each, some of them none."""
    rows = piece.shape[0]
    return [[rows * ((a + 2 * b) % 3) for b in range(size)] for a in range(size)]


def root_of(member: Member) -> int:
    return member.size - 1


def broadcast(me: Member, given: Tensor) -> Tensor:
    me.finish(dist.broadcast(given, group_src=root_of(me), **me.how))
    return given


def all_reduce(me: Member, given: Tensor) -> Tensor:
    me.finish(dist.all_reduce(given, me.reduce_op, **me.how))
    return given


def reduce(me: Member, given: Tensor) -> Tensor:
    me.finish(dist.reduce(given, op=me.reduce_op, group_dst=root_of(me), **me.how))
    return given


def all_gather(me: Member, given: Tensor) -> list[Tensor]:
    outputs = [me.room(given) for _ in range(me.size)]
    me.finish(dist.all_gather(outputs, given, **me.how))
    return outputs


def all_gather_uneven(me: Member, given: Tensor) -> list[Tensor]:
    step = given.shape[0] // (me.rank + 1)
    outputs = [me.room(given, step * (rank + 1), *given.shape[1:]) for rank in range(me.size)]
    me.finish(dist.all_gather(outputs, given, **me.how))
    return outputs


def all_gather_concatenating(me: Member, given: Tensor) -> Tensor:
    rows, *rest = given.shape or (1,)
    output = me.room(given, rows * me.size, *rest)
    me.finish(all_gather_flat(output, given, **me.how))
    return output


def all_gather_stacking(me: Member, given: Tensor) -> Tensor:
    output = me.room(given, me.size, *given.shape)
    me.finish(all_gather_flat(output, given, **me.how))
    return output


def gather(me: Member, given: Tensor) -> list[Tensor]:
    at_root = me.rank == root_of(me)
    outputs = [me.room(given) for _ in range(me.size)] if at_root else None
    me.finish(dist.gather(given, outputs, group_dst=root_of(me), **me.how))
    return outputs or []


def scatter(me: Member, given: list[Tensor]) -> Tensor:
    output = me.room(given[0])
    inputs = given if me.rank == root_of(me) else None
    me.finish(dist.scatter(output, inputs, group_src=root_of(me), **me.how))
    return output


def reduce_scatter(me: Member, given: list[Tensor]) -> Tensor:
    output = me.room(given[0])
    me.finish(dist.reduce_scatter(output, given, me.reduce_op, **me.how))
    return output


def reduce_scatter_single(me: Member, given: Tensor) -> Tensor:
    output = me.room(given, given.shape[0] // me.size, *given.shape[1:])
    me.finish(reduce_scatter_flat(output, given, me.reduce_op, **me.how))
    return output


def all_to_all(me: Member, given: list[Tensor]) -> list[Tensor]:
    outputs = [me.room(given[0]) for _ in range(me.size)]
    me.finish(dist.all_to_all(outputs, given, **me.how))
    return outputs


def all_to_all_even(me: Member, given: Tensor) -> Tensor:
    output = me.room(given)
    me.finish(dist.all_to_all_single(output, given, **me.how))
    return output


def all_to_all_uneven(me: Member, given: Tensor) -> Tensor:
    splits = uneven_splits(torch.empty(ROWS), me.size)
    outgoing, incoming = splits[me.rank], [row[me.rank] for row in splits]
    output = me.room(given, sum(incoming), *given.shape[1:])
    me.finish(dist.all_to_all_single(output, given, incoming, outgoing, **me.how))
    return output


def all_reduce_coalesced(me: Member, given: list[Tensor]) -> list[Tensor]:
    me.finish(dist.all_reduce_coalesced(given, me.reduce_op, **me.how))
    return given


def all_gather_coalesced(me: Member, given: list[Tensor]) -> list[list[Tensor]]:
    outputs = [[me.room(tensor) for tensor in given] for _ in range(me.size)]
    me.finish(dist.all_gather_coalesced(outputs, given, **me.how))
    return outputs


def managed_all_reduce(me: Member, given: list[Tensor]) -> list[Tensor]:
    with _coalescing_manager(me.group, async_ops=me.later) as manager:
        for tensor in given:
            dist.all_reduce(tensor, me.reduce_op, group=me.group)
    manager.wait()
    return given


def managed_all_gather(me: Member, given: list[Tensor]) -> list[Tensor]:
    outputs = [me.room(tensor, me.size, *tensor.shape) for tensor in given]
    with _coalescing_manager(me.group, async_ops=me.later) as manager:
        for output, tensor in zip(outputs, given, strict=True):
            all_gather_flat(output, tensor, group=me.group)
    manager.wait()
    return outputs


def managed_reduce_scatter(me: Member, given: list[Tensor]) -> list[Tensor]:
    outputs = [me.room(t, t.shape[0] // me.size, *t.shape[1:]) for t in given]
    with _coalescing_manager(me.group, async_ops=me.later) as manager:
        for output, tensor in zip(outputs, given, strict=True):
            reduce_scatter_flat(output, tensor, me.reduce_op, group=me.group)
    manager.wait()
    return outputs


def two(make: Make, rank: int, size: int) -> list[Tensor]:
    return [make(rank, 0), make(rank, 1)]


def two_wholes(make: Make, rank: int, size: int) -> list[Tensor]:
    return [whole(make, rank, size), whole(make, rank + 1, size)]


def each(meaning: Callable[..., list[Any]]) -> Callable[[list[list[Tensor]], str], list[Any]]:
    """The same collective for every tensor of a list."""

    def expect(brought: list[list[Tensor]], op: str) -> list[Any]:
        by_tensor = [meaning(list(tensors), op) for tensors in zip(*brought, strict=True)]
        return [list(outputs) for outputs in zip(*by_tensor, strict=True)]

    return expect


def by_sender(brought: list[list[Tensor]], op: str) -> list[Any]:
    return [[[t.clone() for t in given] for given in brought] for _ in brought]


def with_op(meaning: Callable[..., list[Any]]) -> Callable[[list[Any], str], list[Any]]:
    return lambda brought, op: meaning(brought, op=op, factor=FACTOR)


def plain(meaning: Callable[..., list[Any]]) -> Callable[[list[Any], str], list[Any]]:
    return lambda brought, op: meaning(brought)


def with_root(meaning: Callable[..., list[Any]]) -> Callable[[list[Any], str], list[Any]]:
    return lambda brought, op: meaning(brought, root=len(brought) - 1)


def expect_reduce(brought: list[Tensor], op: str) -> list[Tensor]:
    return reference.reduce(brought, root=len(brought) - 1, op=op, factor=FACTOR)


def expect_uneven(brought: list[Tensor], op: str) -> list[Tensor]:
    splits = uneven_splits(torch.empty(ROWS), len(brought))
    return reference.all_to_all_flat(brought, splits)


ROWS = 2
"""Rows of the pieces in cases with uneven splits, where both sides must know them."""

REDUCING = [
    Case(
        "all_reduce",
        one,
        all_reduce,
        with_op(reference.all_reduce),
        in_place=True,
        reduces=True,
    ),
    Case("reduce", one, reduce, expect_reduce, in_place=True, reduces=True),
    Case(
        "reduce_scatter",
        several,
        reduce_scatter,
        with_op(reference.reduce_scatter),
        reduces=True,
    ),
    Case(
        "reduce_scatter_single",
        whole,
        reduce_scatter_single,
        with_op(reference.reduce_scatter_flat),
        joins=True,
        reduces=True,
    ),
]
MOVING = [
    Case("broadcast", one, broadcast, with_root(reference.broadcast), in_place=True),
    Case("all_gather", one, all_gather, plain(reference.all_gather)),
    Case(
        "all_gather_concatenating",
        one,
        all_gather_concatenating,
        plain(reference.all_gather_concatenating),
    ),
    Case("all_gather_stacking", one, all_gather_stacking, plain(reference.all_gather_stacking)),
    Case("gather", one, gather, with_root(reference.gather)),
    Case("scatter", several, scatter, with_root(reference.scatter)),
    Case("all_to_all", several, all_to_all, plain(reference.all_to_all)),
    Case(
        "all_to_all_single",
        whole,
        all_to_all_even,
        plain(reference.all_to_all_flat),
        joins=True,
    ),
]
UNEVEN = [
    Case(
        "all_gather_uneven",
        more_for_later_ranks,
        all_gather_uneven,
        plain(reference.all_gather),
        joins=True,
    ),
    Case("all_to_all_uneven", uneven, all_to_all_uneven, expect_uneven, joins=True),
]
COALESCED = [
    Case(
        "all_reduce_coalesced",
        two,
        all_reduce_coalesced,
        each(reference.all_reduce),
        in_place=True,
        reduces=True,
        deprecated=True,
    ),
    Case("all_gather_coalesced", two, all_gather_coalesced, by_sender, deprecated=True),
    Case(
        "managed_all_reduce",
        two,
        managed_all_reduce,
        each(reference.all_reduce),
        in_place=True,
        reduces=True,
    ),
    Case(
        "managed_all_gather",
        two,
        managed_all_gather,
        each(lambda tensors, op: reference.all_gather_stacking(tensors)),
    ),
    Case(
        "managed_reduce_scatter",
        two_wholes,
        managed_reduce_scatter,
        each(reference.reduce_scatter_flat),
        joins=True,
        reduces=True,
    ),
]
CASES = [*REDUCING, *MOVING, *UNEVEN, *COALESCED]
