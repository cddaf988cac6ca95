"""What every collective means, in one thread and without Phalanx: the tests' own reference.

Each function takes what the ranks of a group bring, in group order, and returns what each of
them must have afterwards, in the same order. Nothing is done in place and nothing is clever:
whole copies, stacked inputs, plain loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold

import torch
from torch import Tensor

BITWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def reduced(inputs: Sequence[Tensor], op: str = "SUM", factor: float = 1.0) -> Tensor:
    """One tensor from the tensors of all ranks."""
    dtype = inputs[0].dtype
    if op in BITWISE:
        return fold(BITWISE[op], inputs)
    stacked = torch.stack(list(inputs))
    if op == "MIN":
        return stacked.amin(0)
    if op == "MAX":
        return stacked.amax(0)
    if op == "PRODUCT":
        return stacked.prod(0).to(dtype)
    total = stacked.sum(0, dtype=None if dtype.is_complex else wide(dtype))
    if op == "AVG":
        rounding = None if dtype.is_floating_point or dtype.is_complex else "trunc"
        total = total.div(len(inputs), rounding_mode=rounding)
    if op == "PREMUL_SUM":
        total = total * factor
    return total.to(dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else torch.int64


def broadcast(inputs: Sequence[Tensor], root: int) -> list[Tensor]:
    return [inputs[root].clone() for _ in inputs]


def all_reduce(inputs: Sequence[Tensor], op: str = "SUM", factor: float = 1.0) -> list[Tensor]:
    return [reduced(inputs, op, factor) for _ in inputs]


def reduce(
    inputs: Sequence[Tensor], root: int, op: str = "SUM", factor: float = 1.0
) -> list[Tensor]:
    """The others keep what they had."""
    return [
        reduced(inputs, op, factor) if rank == root else given.clone()
        for rank, given in enumerate(inputs)
    ]


def all_gather(inputs: Sequence[Tensor]) -> list[list[Tensor]]:
    return [[given.clone() for given in inputs] for _ in inputs]


def all_gather_concatenating(inputs: Sequence[Tensor]) -> list[Tensor]:
    rows = [given if given.dim() else given.reshape(1) for given in inputs]
    return [torch.cat(rows) for _ in inputs]


def all_gather_stacking(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [torch.stack(list(inputs)) for _ in inputs]


def gather(inputs: Sequence[Tensor], root: int) -> list[list[Tensor]]:
    """Only the root has a list; the others have nothing."""
    everything = [given.clone() for given in inputs]
    return [everything if rank == root else [] for rank in range(len(inputs))]


def scatter(lists: Sequence[Sequence[Tensor]], root: int) -> list[Tensor]:
    return [lists[root][rank].clone() for rank in range(len(lists))]


def reduce_scatter(
    lists: Sequence[Sequence[Tensor]], op: str = "SUM", factor: float = 1.0
) -> list[Tensor]:
    """`lists[sender][receiver]`, a list per rank."""
    return [reduced([given[rank] for given in lists], op, factor) for rank in range(len(lists))]


def reduce_scatter_flat(
    wholes: Sequence[Tensor], op: str = "SUM", factor: float = 1.0
) -> list[Tensor]:
    """One tensor per rank, whose first dimension is divided among the ranks."""
    total = reduced(wholes, op, factor)
    rows = total.shape[0] // len(wholes)
    return [total[rank * rows : (rank + 1) * rows] for rank in range(len(wholes))]


def all_to_all(lists: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    return [[given[rank].clone() for given in lists] for rank in range(len(lists))]


def all_to_all_flat(
    wholes: Sequence[Tensor], splits: Sequence[Sequence[int]] | None = None
) -> list[Tensor]:
    """`splits[sender][receiver]` rows go from one to the other; None: the same to everyone."""
    size = len(wholes)
    if splits is None:
        splits = [[whole.shape[0] // size] * size for whole in wholes]
    result = []
    for receiver in range(size):
        pieces = []
        for whole, sizes in zip(wholes, splits, strict=True):
            start = sum(sizes[:receiver])
            pieces.append(whole[start : start + sizes[receiver]])
        result.append(torch.cat(pieces))
    return result
