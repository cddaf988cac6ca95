"""The right result of each collective, in plain torch on one process.

Used only by the operations of the suite. It shares no code with the backend and is written to
be obvious, not fast: `brought[rank]` lists the tensors of a rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

FACTOR = 0.5
"""The factor of PREMUL_SUM in all cases."""

Brought = list[list[Tensor]]


def reduced(tensors: list[Tensor], op: str) -> Tensor:
    """All ranks' tensors made into one."""
    if tensors[0].dtype == torch.bool:
        return _reduced_bool(torch.stack(tensors), op)
    if tensors[0].is_floating_point() and tensors[0].element_size() == 1:
        return reduced([t.float() for t in tensors], op).to(tensors[0].dtype)
    total = tensors[0].clone()
    for other in tensors[1:]:
        total = _pair(total, other, op)
    if op == "AVG":
        mean = total / len(tensors) if _divides(total) else total // len(tensors)
        return mean.to(total.dtype)
    return (total * FACTOR).to(total.dtype) if op == "PREMUL_SUM" else total


def _divides(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _pair(one: Tensor, other: Tensor, op: str) -> Tensor:
    if op in ("SUM", "AVG", "PREMUL_SUM"):
        return one + other
    if op == "PRODUCT":
        return one * other
    if op == "MIN":
        return torch.minimum(one, other)
    if op == "MAX":
        return torch.maximum(one, other)
    if op == "BAND":
        return one & other
    if op == "BOR":
        return one | other
    assert op == "BXOR", op
    return one ^ other


def _reduced_bool(stacked: Tensor, op: str) -> Tensor:
    if op in ("SUM", "MAX", "BOR"):
        return stacked.any(0)
    if op in ("PRODUCT", "MIN", "BAND"):
        return stacked.all(0)
    return stacked.sum(0) % 2 == 1


def broadcast(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return brought[root]


def all_reduce(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return [reduced(list(column), op) for column in zip(*brought, strict=True)]


def reduce(brought: Brought, rank: int, root: int, op: str) -> list[Tensor] | None:
    """The tensors of the other ranks have no defined contents afterwards."""
    return all_reduce(brought, rank, root, op) if rank == root else None


def all_gather(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return [each[0] for each in brought]


def all_gather_coalesced(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return [tensor for each in brought for tensor in each]


def concatenated(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    rows = [[t if t.dim() else t.reshape(1) for t in each] for each in brought]
    return [torch.cat(column) for column in zip(*rows, strict=True)]


def stacked(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return [torch.stack(column) for column in zip(*brought, strict=True)]


def gather(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return all_gather(brought, rank, root, op) if rank == root else []


def scatter(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return [brought[root][rank]]


def reduce_scatter(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return [reduced([each[rank] for each in brought], op)]


def reduce_scatter_tensor(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    """Each tensor is cut into as many parts as there are ranks; a rank gets its own part."""
    whole = all_reduce(brought, rank, root, op)
    return [t.reshape(len(brought), -1)[rank].reshape(_part(t, len(brought))) for t in whole]


def _part(whole: Tensor, size: int) -> tuple[int, ...]:
    return (whole.shape[0] // size, *whole.shape[1:])


def all_to_all(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return [each[rank] for each in brought]


def all_to_all_single(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    rows = brought[0][0].shape[0] // len(brought)
    return [torch.cat([each[0][rank * rows : (rank + 1) * rows] for each in brought])]


def split_rows(rank: int, size: int) -> list[int]:
    """Rows that a rank sends to each, in the uneven case; some of them none."""
    return [2 * ((rank + 2 * to) % 3) for to in range(size)]


def all_to_all_uneven(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    pieces = []
    for source, (tensor,) in enumerate(brought):
        rows = split_rows(source, len(brought))
        start = sum(rows[:rank])
        pieces.append(tensor[start : start + rows[rank]])
    return [torch.cat(pieces)]


def ring(brought: Brought, rank: int, root: int, op: str) -> list[Tensor]:
    return brought[rank - 1]
