"""Small collectives on flat tensors, with one operation for each rank instead of one for each
pair of ranks.

A `reduce_scatter_tensor` is one reduction of the whole inputs, then a copy for each output; an
`all_gather_into_tensor` fills one output and copies it to the others; an `all_to_all_single`
puts the inputs on top of each other and copies a column to each output. Results are the same
bit by bit: every element is added up in the order of ranks. Used where the tensors of all ranks
are plain (`Call.plain`), apart from each other, and small, so that the temporary costs nothing;
`data_movement.py` does the others.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from phalanx.backend.collectives.reduction import Reduction
from phalanx.matching.slots import Call

MOST_BYTES = 1 << 16
"""Of one rank's larger tensor. Above it the bytes count and not the operations."""


def is_flat(calls: list[Call]) -> bool:
    """Whether the functions below can do it."""
    first = calls[0]
    if first.uneven or not first.plain:
        return False
    given, taken = first.inputs[0], first.outputs[0]
    if not given.is_cpu or not 0 < max(given.nbytes, taken.nbytes) <= MOST_BYTES:
        return False
    spans = []
    for call in calls:
        if not call.plain:
            return False
        for tensor in (call.inputs[0], call.outputs[0]):
            start = tensor.data_ptr()
            spans.append((start, start + tensor.nbytes))
    spans.sort()
    return all(one[1] <= other[0] for one, other in pairwise(spans))


def reduce_scatter(calls: list[Call], reduction: Reduction) -> None:
    first, *others = [call.inputs[0].data.view(-1) for call in calls]
    total = first.clone()
    reduction.accumulate(total, others)
    for call, piece in zip(calls, total.chunk(len(calls)), strict=True):
        call.outputs[0].data.view(-1).copy_(piece)


def all_gather(calls: list[Call]) -> None:
    whole, *others = [call.outputs[0].data.view(-1) for call in calls]
    torch.cat([call.inputs[0].data.view(-1) for call in calls], out=whole)
    for output in others:
        output.copy_(whole)


def all_to_all(calls: list[Call]) -> None:
    count = len(calls)
    rows = torch.stack([call.inputs[0].data.view(count, -1) for call in calls])
    for call, column in zip(calls, rows.unbind(1), strict=True):
        call.outputs[0].data.view(count, -1).copy_(column)
