"""Sparse tensors: the one collective that Gloo has for them is the sum.

Complex ones are left out: torch 2.13 itself, in front of every backend, reduces a copy of
them and loses the result.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.conformance.case_context import GROUPS, Context
from phalanx.conformance.case_tensors import dtype_of
from phalanx.conformance.family import Family

family = Family("sparse")
cases, PROGRAMS = family.cases, family.programs

DTYPES = ("float32", "float64", "int64")
KINDS = ("scattered", "same places", "nothing on one rank", "uncoalesced", "rows")


def entries(kind: str, rank: int, dtype: torch.dtype) -> Tensor:
    """A sparse tensor of four rows that differs from rank to rank."""
    count = 0 if kind == "nothing on one rank" and rank == 0 else 2
    first = [1, 3] if kind == "same places" else [rank % 4, (rank + 2) % 4]
    if kind == "uncoalesced":
        first = [rank % 4, rank % 4]
    places = torch.tensor([first[:count]], dtype=torch.int64)
    numbers = (torch.arange(2) + rank + 1)[:count].to(dtype)
    if kind == "rows":
        numbers = numbers.reshape(-1, 1).expand(-1, 3).contiguous()
    shape = (4, 3) if kind == "rows" else (4,)
    return torch.sparse_coo_tensor(places, numbers, shape, check_invariants=True)


@family.case(
    "all_reduce_sparse",
    "of",
    over={"kind": KINDS, "dtype": DTYPES, "mode": ("sync", "async")},
    least=2,
    needs="sparse",
)
def all_reduce(me: Context, kind: str, dtype: str, mode: str) -> None:
    _reduce(me, kind, dtype, mode, "full")


@family.case(
    "all_reduce_sparse", "in a subgroup", over={"kind": KINDS}, least=3, needs="sparse"
)
def all_reduce_in_subgroup(me: Context, kind: str) -> None:
    _reduce(me, kind, "float32", "sync", "sub")


def _reduce(me: Context, kind: str, dtype: str, mode: str, group: str) -> None:
    handle, members = me.group(group), GROUPS[group](me.size)[0]
    if me.rank not in members:
        return
    tensor = entries(kind, me.rank, dtype_of(dtype)).to(me.device)
    work = dist.all_reduce(tensor, group=handle, async_op=mode == "async")
    if work is not None:
        work.wait()
    me.check(tensor.is_sparse, "the result is not sparse")
    parts = [entries(kind, rank, dtype_of(dtype)).to_dense() for rank in members]
    me.equal(tensor.to_dense(), torch.stack(parts).sum(0), "sum")
