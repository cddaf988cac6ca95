"""Collectives on one GPU as one launch, where a kernel can do it.

A collective is a number of *rows*. The inputs of a row are reduced in the order of ranks, or
copied if there is one, and all its outputs get the result:

| collective                      | rows    | inputs of a row | outputs of a row |
|---------------------------------|---------|-----------------|------------------|
| all_reduce                      | 1       | all ranks       | all ranks        |
| reduce                          | 1       | all ranks       | the root         |
| reduce_scatter                  | outputs | all ranks       | 1                |
| broadcast                       | 1       | the root        | the others       |
| all_gather                      | inputs  | 1               | all ranks        |
| gather, scatter, all_to_all     | pieces  | 1               | 1                |

So every byte is read once and written where it belongs once. `data_movement.py` does what does
not fit: several devices, tensors with gaps, uneven sizes, memory that overlaps, rare types. The
results are the same bit by bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.backend.collectives.data_movement import MoveData
from phalanx.backend.collectives.reduction import PREMUL_SUM, SUM
from phalanx.backend.devices import fused_kernels
from phalanx.backend.devices.fused_kernels import COPY, TYPES, Row
from phalanx.matching.slots import Call


class FusedPlan(NamedTuple):
    """Which tensors a collective reads and writes, how many bytes a row has, and the rows that
    their addresses make. `own` says where input m begins in output k, in bytes, if it may lie
    there; None if it may not."""

    given: Sequence[Tensor]
    taken: Sequence[Tensor]
    nbytes: int
    rows: Callable[[list[int], list[int], int], list[Row]]
    own: Callable[[int, int], int | None] = lambda m, k: None


def move(move_data: MoveData, calls: list[Call]) -> None:
    """Do what `move_data(calls)` does."""
    if not is_fused(calls):
        move_data(calls)


def is_fused(calls: list[Call]) -> bool:
    """Whether a kernel has moved the data."""
    first = calls[0]
    planner = _PLANNERS.get(first.name)
    if planner is None or first.uneven or len(calls) == 1:
        return False
    plan = planner(calls)
    if plan is None or not plan.nbytes:
        return False
    given, taken = plan.given, plan.taken
    device, dtype = given[0].get_device(), given[0].dtype
    plain = all(call.plain for call in calls)
    for tensor in given if taken is given else (*given, *taken):
        if tensor.get_device() != device:
            return False
        if not plain and not (
            tensor.dtype is dtype and tensor.layout is torch.strided and tensor.is_contiguous()
        ):
            return False
    op = COPY if first.op is None else first.op[0]
    if op != COPY:
        if op == SUM and dtype.is_complex:
            dtype = torch.float32 if dtype is torch.complex64 else torch.float64
        if op == PREMUL_SUM or dtype not in TYPES:
            return False
    starts = [tensor.data_ptr() for tensor in given]
    ends = starts if taken is given else [tensor.data_ptr() for tensor in taken]
    key = (first.name, first.root, plan.nbytes, *starts, *(() if ends is starts else ends))

    def make_rows() -> list[Row]:
        return plan.rows(starts, ends, plan.nbytes) if _is_apart(plan, starts, ends) else []

    nbytes = plan.nbytes
    return fused_kernels.move_rows(
        key, make_rows, op=op, dtype=dtype, nbytes=nbytes, device=device
    )


def _is_apart(plan: FusedPlan, starts: list[int], ends: list[int]) -> bool:
    """Whether no output lies in another one, nor an input in an output but in its own place:
    then the order in which a kernel works changes nothing."""
    taken = enumerate(zip(ends, plan.taken, strict=True))
    spans = sorted((start, start + tensor.nbytes, k) for k, (start, tensor) in taken)
    if any(one[1] > other[0] for one, other in pairwise(spans)):
        return False
    if ends is starts:
        return True
    begins = [span[0] for span in spans]
    for m, (start, tensor) in enumerate(zip(starts, plan.given, strict=True)):
        at = max(0, bisect_right(begins, start) - 1)
        while at < len(spans) and spans[at][0] < start + tensor.nbytes:
            begin, end, k = spans[at]
            if end > start and plan.own(m, k) != start - begin:
                return False
            at += 1
    return True


def _in_place(m: int, k: int) -> int | None:
    return 0


def _in_own_place(m: int, k: int) -> int | None:
    return 0 if m == k else None


def _all_reduce(calls: list[Call]) -> FusedPlan:
    tensors = [tensor for call in calls for tensor in call.inputs]
    return FusedPlan(tensors, tensors, tensors[0].nbytes, lambda s, e, n: [(n, s, e)])


def _reduce(calls: list[Call]) -> FusedPlan | None:
    root = calls[0].root
    given = [call.inputs[0] for call in calls]
    taken = [given[root]]  # type: ignore[index]
    return FusedPlan(given, taken, taken[0].nbytes, lambda s, e, n: [(n, s, e)], _in_place)


def _broadcast(calls: list[Call]) -> FusedPlan | None:
    root = calls[0].root
    if any(len(call.inputs) != 1 for call in calls):
        return None
    given = [calls[root].inputs[0]]  # type: ignore[index]
    taken = [call.inputs[0] for call in calls if call.inputs[0] is not given[0]]
    return FusedPlan(given, taken, given[0].nbytes, lambda s, e, n: [(n, s, e)], _in_place)


def _reduce_scatter_tensor(calls: list[Call]) -> FusedPlan:
    given = [call.inputs[0] for call in calls]
    taken = [call.outputs[0] for call in calls]
    size = taken[0].nbytes

    def rows(starts: list[int], ends: list[int], n: int) -> list[Row]:
        return [(n, [each + m * n for each in starts], [end]) for m, end in enumerate(ends)]

    return FusedPlan(given, taken, size, rows, lambda m, k: -m * size if m == k else None)


def _all_gather_into_tensor(calls: list[Call]) -> FusedPlan:
    given = [call.inputs[0] for call in calls]
    taken = [call.outputs[0] for call in calls]
    size = given[0].nbytes

    def rows(starts: list[int], ends: list[int], n: int) -> list[Row]:
        return [(n, [start], [e + m * n for e in ends]) for m, start in enumerate(starts)]

    return FusedPlan(given, taken, size, rows, lambda m, k: m * size if m == k else None)


def _all_to_all_single(calls: list[Call]) -> FusedPlan | None:
    if any(calls[0].facts):
        return None
    given = [call.inputs[0] for call in calls]
    taken = [call.outputs[0] for call in calls]

    def rows(starts: list[int], ends: list[int], n: int) -> list[Row]:
        pairs = ((s, r) for s in range(len(starts)) for r in range(len(ends)))
        return [(n, [starts[s] + r * n], [ends[r] + s * n]) for s, r in pairs]

    return FusedPlan(given, taken, given[0].nbytes // len(calls), rows)


def _all_gather(calls: list[Call]) -> FusedPlan | None:
    """Lists: the outputs of member c for input m stand at c * members + m."""
    if any(len(call.inputs) != 1 for call in calls):
        return None
    count = len(calls)
    given = [call.inputs[0] for call in calls]
    taken = [output for call in calls for output in call.outputs[0]]

    def rows(starts: list[int], ends: list[int], n: int) -> list[Row]:
        return [(n, [start], ends[m::count]) for m, start in enumerate(starts)]

    def own(m: int, k: int) -> int | None:
        return 0 if k == m * count + m else None

    return _if_even(FusedPlan(given, taken, given[0].nbytes, rows, own))


def _pairs(given: list[Tensor], taken: list[Tensor]) -> FusedPlan | None:
    """Each input goes to the output of the same number."""

    def rows(starts: list[int], ends: list[int], n: int) -> list[Row]:
        return [(n, [start], [end]) for start, end in zip(starts, ends, strict=True)]

    return _if_even(FusedPlan(given, taken, given[0].nbytes, rows, _in_own_place))


def _gather(calls: list[Call]) -> FusedPlan | None:
    root = calls[0].root
    outputs = list(calls[root].outputs)  # type: ignore[index]
    return _pairs([call.inputs[0] for call in calls], outputs)


def _scatter(calls: list[Call]) -> FusedPlan | None:
    root = calls[0].root
    inputs = list(calls[root].inputs)  # type: ignore[index]
    return _pairs(inputs, [call.outputs[0] for call in calls])


def _all_to_all(calls: list[Call]) -> FusedPlan | None:
    members = range(len(calls))
    given = [calls[s].inputs[r] for r in members for s in members]
    taken = [calls[r].outputs[s] for r in members for s in members]
    return _pairs(given, taken)


def _reduce_scatter(calls: list[Call]) -> FusedPlan | None:
    """Lists: piece m of member s stands at m * members + s."""
    count = len(calls)
    if any(len(call.outputs) != 1 or len(call.inputs[0]) != count for call in calls):
        return None
    given = [call.inputs[0][m] for m in range(count) for call in calls]
    taken = [call.outputs[0] for call in calls]

    def rows(starts: list[int], ends: list[int], n: int) -> list[Row]:
        return [(n, starts[m * count : (m + 1) * count], [end]) for m, end in enumerate(ends)]

    def own(m: int, k: int) -> int | None:
        return 0 if m == k * count + k else None

    return _if_even(FusedPlan(given, taken, taken[0].nbytes, rows, own))


def _if_even(plan: FusedPlan) -> FusedPlan | None:
    even = all(tensor.nbytes == plan.nbytes for tensor in (*plan.given, *plan.taken))
    return plan if even else None


_PLANNERS: dict[str, Callable[[list[Call]], FusedPlan | None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}
