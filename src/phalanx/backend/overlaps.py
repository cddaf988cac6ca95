"""Whether the tensors of one call may lie where they lie: outputs apart, inputs where the
backend can stand it.

Used by the process group before a call meets the others. Addresses are compared; a view of one
buffer for each rank is as good as separate tensors.

| call | refused where |
|---|---|
| any list of outputs | two of them share memory: one result would overwrite another |
| `all_to_all_single` | input and output share memory |
| `scatter`, on the root | the output shares memory with another rank's part |
| `all_gather_into_tensor`, `reduce_scatter_tensor` | they share memory, and the |
| | smaller one is not exactly its rank's own part of the larger |

Measured on Gloo (torch 2.13, 4 ranks, 400 kB for each): the first three give wrong data, the
last the right data, because Gloo works on copies. NCCL documents where in-place is allowed, and
nothing else says that a backend must make a copy. Of an `all_gather` into a list, backends make
a copy of the input or of the outputs (`is_overwritten`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from phalanx.backend.rank_errors import InvalidCallError
from phalanx.backend.work.tensor_memory import extent, share_bytes


def check_apart(name: str, outputs: Sequence[Tensor]) -> None:
    """Results of different ranks must not end up in one place."""
    if len(outputs) < 2:
        return
    spans = [(*extent(tensor), index) for index, tensor in enumerate(outputs)]
    spans.sort()
    for (_, high, a), (low, end, b) in pairwise(spans):
        if low < high and low < end and share_bytes(outputs[a], outputs[b]):
            first, second = sorted((a, b))
            same = "are the same memory" if _same(outputs[a], outputs[b]) else "overlap"
            raise InvalidCallError(
                f"{name}: outputs {first} and {second} {same}, so one result overwrites the "
                "other; give each rank's result its own, e.g. [torch.empty_like(t) for _ in "
                "range(world_size)]"
            )


def check_disjoint(name: str, given: Tensor, output: Tensor, *, what: str = "output") -> None:
    """The call reads `given` while it writes `output`."""
    if _overlap(given, output):
        raise InvalidCallError(
            f"{name}: input and {what} share memory, and the one is written while the other "
            f"is read; give another {what}, e.g. torch.empty_like(input)"
        )


def check_other_parts(name: str, output: Tensor, parts: Sequence[Tensor], own: int) -> None:
    """`output` may be the rank's own part, and nothing of another's."""
    for index, part in enumerate(parts):
        if index != own and _overlap(output, part):
            raise InvalidCallError(
                f"{name}: the output shares memory with input {index}, which is for another "
                f"rank and may be sent after it is overwritten; only input {own} may be it"
            )


def is_overwritten(given: Tensor, outputs: Sequence[Tensor], own: int) -> bool:
    """Whether `given` lies in an output, and is not exactly that of its own rank."""
    low, high = extent(given)
    for index, output in enumerate(outputs):
        start, end = extent(output)
        is_own = index == own and (low, high) == (start, end)
        if low < end and start < high and not is_own and share_bytes(given, output):
            return True
    return False


def check_own_part(name: str, part: Tensor, whole: Tensor, own: int) -> None:
    """In place is allowed where `part` is exactly this rank's piece of `whole`."""
    if not _overlap(part, whole):
        return
    low, high = extent(part)
    start = extent(whole)[0] + own * (high - low)
    if low != start:
        raise InvalidCallError(
            f"{name}: input and output share memory, and the one is written while the other "
            "is read; give another output, or work in place: the smaller one is the rank's "
            "own part of the larger, whole[rank * n : (rank + 1) * n]"
        )


def _overlap(a: Tensor, b: Tensor) -> bool:
    low, high = extent(a)
    start, end = extent(b)
    return low < end and start < high and share_bytes(a, b)


def _same(a: Tensor, b: Tensor) -> bool:
    return extent(a) == extent(b)
