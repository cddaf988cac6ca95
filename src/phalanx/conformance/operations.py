"""Every collective as a row: its inputs and results on a rank, the call, and what is right.

The family `collectives` runs the rows over dtypes, groups, layouts, roots and reduce
operations. The right results come from `reference.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from phalanx.backend.torch_private import private
from phalanx.conformance import reference
from phalanx.conformance.case_tensors import Shape
from phalanx.conformance.reference import FACTOR, split_rows

Shapes = list[Shape]


@dataclass(frozen=True)
class Calling:
    """How one member calls: `rank`, `size` and `root` count inside of the group."""

    group: Any
    rank: int
    size: int
    root: int
    op: str
    later: bool
    spelling: str
    members: tuple[int, ...]

    @property
    def how(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.later}

    @property
    def reduce_op(self) -> Any:
        if self.op == "PREMUL_SUM":
            return private.make_premul_sum(FACTOR)
        return getattr(dist.ReduceOp, self.op)

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    def source(self) -> dict[str, Any]:
        return self._spelled("src")

    def target(self) -> dict[str, Any]:
        return self._spelled("dst")

    def _spelled(self, word: str) -> dict[str, Any]:
        if self.spelling == "group":
            return {f"group_{word}": self.root}
        return {word: self.members[self.root]}


def same_shape(shape: Shape, rank: int, size: int) -> Shapes:
    return [shape]


def one_for_each(shape: Shape, rank: int, size: int) -> Shapes:
    return [shape] * size


def two(shape: Shape, rank: int, size: int) -> Shapes:
    return [shape, (shape[0] * 2, *shape[1:]) if shape else (2,)]


def joined(shape: Shape, rank: int, size: int) -> Shapes:
    if not shape:
        return [(size,)]
    return [(shape[0] * size, *shape[1:])]


def two_joined(shape: Shape, rank: int, size: int) -> Shapes:
    return [whole for each in two(shape, rank, size) for whole in joined(each, rank, size)]


def stacked(shape: Shape, rank: int, size: int) -> Shapes:
    return [(size, *shape)]


def growing(shape: Shape, rank: int, size: int) -> Shapes:
    return [(shape[0] * (rank + 1), *shape[1:])]


def all_growing(shape: Shape, rank: int, size: int) -> Shapes:
    return [growing(shape, each, size)[0] for each in range(size)]


def two_for_each(shape: Shape, rank: int, size: int) -> Shapes:
    return two(shape, rank, size) * size


def outgoing(shape: Shape, rank: int, size: int) -> Shapes:
    return [(sum(split_rows(rank, size)), *shape[1:])]


def incoming(shape: Shape, rank: int, size: int) -> Shapes:
    return [(sum(split_rows(source, size)[rank] for source in range(size)), *shape[1:])]


Call = Callable[[Calling, list[Tensor], list[Tensor]], Any]
Expect = Callable[[reference.Brought, int, int, str], "list[Tensor] | None"]
Bring = Callable[[Shape, int, int], Shapes]


@dataclass(frozen=True)
class Operation:
    """`gets=None`: the result is in the tensors that a rank brings.

    `use`: the operation's name in a backend's profile, where it is another one.
    """

    name: str
    brings: Bring
    gets: Bring | None
    call: Call
    expect: Expect
    reduces: bool = False
    rooted: bool = False
    rows: bool = False
    only_root_gets: bool = False
    use: str = ""
    uneven: bool = False
    pairs: bool = False
    managed: bool = False

    @property
    def gathers(self) -> bool:
        """Whether it gathers into one tensor, which a backend may want in one shape only."""
        return self.in_profile.startswith("all_gather_into_tensor")

    @property
    def in_profile(self) -> str:
        return self.use or self.name


def _broadcast(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.broadcast(inputs[0], **me.source(), **me.how)


def _all_reduce(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.all_reduce(inputs[0], me.reduce_op, **me.how)


def _reduce(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.reduce(inputs[0], op=me.reduce_op, **me.target(), **me.how)


def _all_gather(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.all_gather(outputs, inputs[0], **me.how)


def _all_gather_into(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.all_gather_into_tensor(outputs[0], inputs[0], **me.how)


def _gather(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.gather(inputs[0], outputs if me.is_root else None, **me.target(), **me.how)


def _scatter(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    given = inputs if me.is_root else None
    return dist.scatter(outputs[0], given, **me.source(), **me.how)


def _reduce_scatter(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.reduce_scatter(outputs[0], inputs, me.reduce_op, **me.how)


def _reduce_scatter_tensor(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.reduce_scatter_tensor(outputs[0], inputs[0], me.reduce_op, **me.how)


def _all_to_all(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.all_to_all(outputs, inputs, **me.how)


def _all_to_all_single(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.all_to_all_single(outputs[0], inputs[0], **me.how)


def _all_to_all_uneven(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    there = split_rows(me.rank, me.size)
    here = [split_rows(source, me.size)[me.rank] for source in range(me.size)]
    return dist.all_to_all_single(outputs[0], inputs[0], here, there, **me.how)


def _all_reduce_coalesced(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    return dist.all_reduce_coalesced(inputs, me.reduce_op, **me.how)


def _all_gather_coalesced(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    lists = [outputs[2 * rank : 2 * rank + 2] for rank in range(me.size)]
    return dist.all_gather_coalesced(lists, inputs, **me.how)


def _managed(call: Callable[[Calling, Tensor, Tensor | None], Any]) -> Call:
    """Several calls inside of the coalescing manager."""

    def carry_out(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
        with private.coalescing_manager(me.group, async_ops=me.later) as manager:
            for index, tensor in enumerate(inputs):
                call(me, tensor, outputs[index] if outputs else None)
        return manager if me.later else None

    return carry_out


def _ring(me: Calling, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
    """Every rank sends to the next. A refused send is refused on all ranks, so no rank
    waits."""
    right, left = me.members[(me.rank + 1) % me.size], me.members[me.rank - 1]
    sent = dist.isend(inputs[0], right, group=me.group, tag=3)
    if me.later:
        return _Both([sent, dist.irecv(outputs[0], left, group=me.group, tag=3)])
    dist.recv(outputs[0], left, group=me.group, tag=3)
    assert sent is not None
    sent.wait()
    return None


class _Both:
    """Two works as one."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("broadcast", same_shape, None, _broadcast, reference.broadcast, rooted=True),
        Operation(
            "all_reduce", same_shape, None, _all_reduce, reference.all_reduce, reduces=True
        ),
        Operation(
            "reduce",
            same_shape,
            None,
            _reduce,
            reference.reduce,
            reduces=True,
            rooted=True,
        ),
        Operation("all_gather", same_shape, one_for_each, _all_gather, reference.all_gather),
        Operation(
            "all_gather_uneven",
            growing,
            all_growing,
            _all_gather,
            reference.all_gather,
            rows=True,
            use="all_gather",
            uneven=True,
        ),
        Operation(
            "all_gather_into_tensor",
            same_shape,
            joined,
            _all_gather_into,
            reference.concatenated,
        ),
        Operation(
            "all_gather_into_tensor_stacking",
            same_shape,
            stacked,
            _all_gather_into,
            reference.stacked,
            use="all_gather_into_tensor",
        ),
        Operation(
            "gather",
            same_shape,
            one_for_each,
            _gather,
            reference.gather,
            rooted=True,
            only_root_gets=True,
        ),
        Operation(
            "scatter", one_for_each, same_shape, _scatter, reference.scatter, rooted=True
        ),
        Operation(
            "reduce_scatter",
            one_for_each,
            same_shape,
            _reduce_scatter,
            reference.reduce_scatter,
            reduces=True,
        ),
        Operation(
            "reduce_scatter_tensor",
            joined,
            same_shape,
            _reduce_scatter_tensor,
            reference.reduce_scatter_tensor,
            reduces=True,
            rows=True,
        ),
        Operation("all_to_all", one_for_each, one_for_each, _all_to_all, reference.all_to_all),
        Operation(
            "all_to_all_single",
            joined,
            joined,
            _all_to_all_single,
            reference.all_to_all_single,
            rows=True,
        ),
        Operation(
            "all_to_all_single_uneven",
            outgoing,
            incoming,
            _all_to_all_uneven,
            reference.all_to_all_uneven,
            rows=True,
            use="all_to_all_single",
        ),
        Operation(
            "all_reduce_coalesced",
            two,
            None,
            _all_reduce_coalesced,
            reference.all_reduce,
            reduces=True,
        ),
        Operation(
            "all_gather_coalesced",
            two,
            two_for_each,
            _all_gather_coalesced,
            reference.all_gather_coalesced,
        ),
        Operation(
            "coalescing_all_reduce",
            two,
            None,
            _managed(lambda me, t, out: dist.all_reduce(t, me.reduce_op, group=me.group)),
            reference.all_reduce,
            reduces=True,
            use="all_reduce_coalesced",
            managed=True,
        ),
        Operation(
            "coalescing_all_gather",
            two,
            two_joined,
            _managed(lambda me, t, out: dist.all_gather_into_tensor(out, t, group=me.group)),
            reference.concatenated,
            use="all_gather_into_tensor_coalesced",
            managed=True,
        ),
        Operation(
            "coalescing_reduce_scatter",
            two_joined,
            two,
            _managed(
                lambda me, t, out: dist.reduce_scatter_tensor(
                    out, t, me.reduce_op, group=me.group
                )
            ),
            reference.reduce_scatter_tensor,
            reduces=True,
            rows=True,
            use="reduce_scatter_tensor_coalesced",
            managed=True,
        ),
        Operation(
            "send_recv",
            same_shape,
            same_shape,
            _ring,
            reference.ring,
            use="send",
            pairs=True,
        ),
    )
}
