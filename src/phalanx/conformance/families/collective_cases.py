"""Collectives that move or reduce tensors: dtypes, modes, groups, layouts, shapes, roots.

One program runs all of these cases: it makes the tensors, calls the operation, and compares
results, inputs and the memory around them with the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from phalanx.conformance.case_context import FEWEST, GROUPS, CaseUnmet, Context, WrongData
from phalanx.conformance.case_model import Case
from phalanx.conformance.case_tensors import (
    COMPLEX,
    DTYPES,
    EIGHTS,
    FLOATS,
    SHAPES,
    Placed,
    dtype_of,
    fresh_room,
    place,
    result_layout,
    values,
)
from phalanx.conformance.operations import OPERATIONS, Calling, Operation

REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
LAYOUTS = ("view", "strided", "columns", "transposed", "channels-last", "requires-grad")
INPUT_LAYOUTS = ("expanded",)
ODD_SHAPES = ("empty", "empty-rows", "zero-dim", "vector", "large")
MODES = ("sync", "async")


def cases(ranks: int) -> Iterator[Case]:
    yield from _by_dtype(ranks)
    yield from _by_reduce_op(ranks)
    yield from _by_group(ranks)
    yield from _by_layout(ranks)
    yield from _by_shape(ranks)
    yield from _by_root(ranks)


def _by_dtype(ranks: int) -> Iterator[Case]:
    for operation in OPERATIONS.values():
        for dtype in DTYPES:
            for mode in MODES:
                yield _case(operation, ranks, dtype=dtype, mode=mode)


def _by_reduce_op(ranks: int) -> Iterator[Case]:
    for name in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"):
        dtypes = DTYPES if name == "all_reduce" else ("float32", "int32", "bool", "complex64")
        for dtype in dtypes:
            for op in REDUCE_OPS[1:]:
                if _has_meaning(op, dtype):
                    yield _case(OPERATIONS[name], ranks, dtype=dtype, op=op)


def _has_meaning(op: str, dtype: str) -> bool:
    """Whether there is an answer at all; the rest are mistakes, and in that family."""
    if op in ("MIN", "MAX") and dtype in COMPLEX:
        return False
    if op in ("BAND", "BOR", "BXOR") and dtype in (*FLOATS, *COMPLEX, *EIGHTS):
        return False
    return dtype not in EIGHTS and not (op in ("AVG", "PREMUL_SUM") and dtype == "bool")


def _by_group(ranks: int) -> Iterator[Case]:
    for operation in OPERATIONS.values():
        for group in ("sub", "single", "overlapping", "none"):
            if ranks < FEWEST[group] or (operation.pairs and group == "single"):
                continue
            if operation.pairs and group == "none":
                continue  # torch's send and recv have answers of their own to that
            for mode in MODES:
                yield _case(operation, ranks, group=group, mode=mode)


def _by_layout(ranks: int) -> Iterator[Case]:
    for operation in OPERATIONS.values():
        for layout in LAYOUTS:
            shape = "image" if layout == "channels-last" else "matrix"
            for mode in MODES:
                yield _case(operation, ranks, layout=layout, shape=shape, mode=mode)
        if operation.gets is not None:
            for layout in INPUT_LAYOUTS:
                yield _case(operation, ranks, layout=layout, shape="matrix")


def _by_shape(ranks: int) -> Iterator[Case]:
    for operation in OPERATIONS.values():
        for shape in ODD_SHAPES:
            if shape == "zero-dim" and operation.rows:
                continue
            yield _case(operation, ranks, shape=shape)


def _by_root(ranks: int) -> Iterator[Case]:
    for operation in OPERATIONS.values():
        if not operation.rooted:
            continue
        for group in ("full", "sub") if ranks >= FEWEST["sub"] else ("full",):
            size = len(GROUPS[group](ranks)[0])
            for root in range(size):
                for spelling in ("global", "group"):
                    yield _case(operation, ranks, group=group, root=root, spelling=spelling)


def _case(operation: Operation, ranks: int, **given: Any) -> Case:
    """The id says what is out of the ordinary, dtype and mode always."""
    dtype, mode = given.setdefault("dtype", "float32"), given.setdefault("mode", "sync")
    variant = [dtype]
    if operation.reduces:
        variant.append(str(given.get("op", "SUM")).lower())
    variant.append(mode)
    if "root" in given:
        variant.append(f"root{given['root']}-{given['spelling']}")
    given.setdefault("group", "full")
    if given["group"] != "full":
        variant.append(given["group"])
    for word in ("layout", "shape"):
        if word in given and given[word] != "matrix":
            variant.append(given[word])
    return Case(
        family="collectives",
        operation=operation.name,
        variant=tuple(variant),
        ranks=ranks,
        program="collective",
        given={"operation": operation.name, **given},
    )


def collective(
    me: Context,
    *,
    operation: str,
    dtype: str,
    mode: str,
    group: str,
    op: str = "SUM",
    layout: str = "contiguous",
    shape: str = "matrix",
    root: int = 0,
    spelling: str = "global",
) -> None:
    """The program of this family. On overlapping groups both calls are under way at once."""
    row = OPERATIONS[operation]
    handles = me.groups(group)
    calls = []
    for handle, members in zip(handles, GROUPS[group](me.size), strict=True):
        member = me.rank in members
        if not member and group != "none":
            continue
        calling = Calling(
            group=handle,
            rank=members.index(me.rank) if member else 0,
            size=len(members),
            root=min(root, len(members) - 1),
            op=op,
            later=mode == "async",
            spelling=spelling,
            members=tuple(members),
        )
        calls.append(_Call(me, row, calling, dtype, layout, shape, member))
    for call in calls:
        call.start()
    for call in reversed(calls):
        call.finish()


class _Call:
    """One call on one group: brought, under way, compared."""

    def __init__(
        self,
        me: Context,
        row: Operation,
        calling: Calling,
        dtype: str,
        layout: str,
        shape: str,
        member: bool,
    ) -> None:
        self.me, self.row, self.calling, self.member = me, row, calling, member
        self.dtype, self.shape = dtype_of(dtype), SHAPES[shape]
        self.layout = layout
        self.brought = [self._bring(rank) for rank in range(calling.size)]
        if layout in INPUT_LAYOUTS:  # such a tensor holds fewer different values
            self.brought = [
                [place(tensor, layout, "cpu").tensor.clone() for tensor in each]
                for each in self.brought
            ]
        own = self.brought[calling.rank]
        self.inputs = [place(tensor, layout, me.device) for tensor in own]
        self.outputs = [self._room(each) for each in self._result_shapes()]

    def _bring(self, rank: int) -> list[Tensor]:
        shapes = self.row.brings(self.shape, rank, self.calling.size)
        return [
            values(each, self.dtype, rank=rank, index=index, small=self.row.reduces)
            for index, each in enumerate(shapes)
        ]

    def _result_shapes(self) -> list[tuple[int, ...]]:
        if self.row.gets is None or (self.row.only_root_gets and not self.calling.is_root):
            return []
        return self.row.gets(self.shape, self.calling.rank, self.calling.size)

    def _room(self, shape: tuple[int, ...]) -> Placed:
        layout = result_layout(self.layout, shape)
        return fresh_room(shape, self.dtype, layout, self.me.device)

    def start(self) -> None:
        self.before = [placed.tensor.detach().clone() for placed in self._placed()]
        self.work = self.row.call(
            self.calling,
            [placed.tensor for placed in self.inputs],
            [placed.tensor for placed in self.outputs],
        )

    def _placed(self) -> list[Placed]:
        return [*self.inputs, *self.outputs]

    def finish(self) -> None:
        if not self.member:
            self._check_bystander()
            return
        if (self.work is not None) != self.calling.later:
            raise CaseUnmet(f"returned {self.work!r}")
        if self.work is not None:
            self.work.wait()
        self._check_guards()
        if self.row.gets is not None:
            for placed, before in zip(self.inputs, self.before, strict=False):
                self.me.equal(placed.tensor, before, "the input was changed")
        expected = self.row.expect(
            self.brought, self.calling.rank, self.calling.root, self.calling.op
        )
        if expected is not None:
            found = self.inputs if self.row.gets is None else self.outputs
            self.me.equal(
                [placed.tensor for placed in found],
                expected,
                "result",
                close=self.calling.op in ("AVG", "PREMUL_SUM"),
            )

    def _check_bystander(self) -> None:
        if self.work is not None and not self.row.managed:
            raise CaseUnmet(f"returned {self.work!r} to a rank that is not in the group")
        for placed, before in zip(self._placed(), self.before, strict=True):
            self.me.equal(placed.tensor, before, "data of a rank that is not in the group")
        self._check_guards()

    def _check_guards(self) -> None:
        if not all(placed.is_guard_intact() for placed in self._placed()):
            raise WrongData("wrote outside of the tensor")


PROGRAMS = {"collective": collective}
