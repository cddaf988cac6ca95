"""Calls that a backend may refuse: what three ranks get, here and on real Gloo.

`test_refusals.py` runs them in threads and, through this file's `main`, in processes. All
ranks make the same call, so that all get the same answer and go on.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.backend.cases import COALESCED, MOVING, REDUCING, Case, Member
from tests.backend.cases import all_gather_flat as gather_flat
from tests.backend.cases import reduce_scatter_flat as scatter_flat

RANKS = 3
KINDS = (ValueError, TypeError, RuntimeError, NotImplementedError, IndexError)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
SOME_DTYPES = (
    torch.float32,
    torch.float16,
    torch.int16,
    torch.int32,
    torch.bool,
    torch.complex64,
    torch.float8_e5m2,
)
MORE_DTYPES = (
    torch.float64,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int8,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex32,
    torch.complex128,
)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def ones(dtype: torch.dtype) -> Callable[[int, int], Tensor]:
    return lambda rank, index: torch.ones(2, dtype=torch.float32).to(dtype)


def by_dtype(dtypes: tuple[torch.dtype, ...]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every collective with every reduce operation on every dtype."""
    for case in (*REDUCING, *MOVING, *COALESCED):
        for dtype in dtypes:
            for op in OPS if case.reduces else ("SUM",):
                yield f"{case} {op} {name_of(dtype)}", carry_out(case, dtype, op)


def carry_out(case: Case, dtype: torch.dtype, op: str) -> Callable[[], Any]:
    def call() -> Any:
        me = Member(None, dist.get_rank(), RANKS, op=op)
        return case.call(me, case.bring(ones(dtype), me.rank, RANKS))

    return call


def mine(*shape: int) -> Tensor:
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    return numbers.view(shape) + 100 * dist.get_rank()


def rooms(*shape: int) -> list[Tensor]:
    return [torch.zeros(shape) for _ in range(RANKS)]


def leaf() -> Tensor:
    return torch.zeros(2, requires_grad=True)


def on_root(tensors: list[Tensor]) -> list[Tensor] | None:
    return tensors if dist.get_rank() == 0 else None


def world() -> Any:
    return dist.group.WORLD


def sparse(op: Any = dist.ReduceOp.SUM, dtype: torch.dtype = torch.float32) -> None:
    dist.all_reduce(torch.eye(3).to(dtype).to_sparse(), op)


CALLS: dict[str, Callable[[], Any]] = {
    "transposed all_reduce": lambda: dist.all_reduce(mine(2, 3).t()),
    "transposed broadcast": lambda: dist.broadcast(mine(2, 3).t(), 0),
    "strided all_gather": lambda: dist.all_gather(rooms(2), mine(4)[::2]),
    "strided outputs": lambda: dist.all_gather([r[::2] for r in rooms(4)], mine(2)),
    "strided output of a flat gather": lambda: gather_flat(mine(12)[::2], mine(2)),
    "strided input of a flat scatter": lambda: scatter_flat(mine(2), mine(12)[::2]),
    "transposed reduce_scatter": lambda: dist.reduce_scatter(
        torch.zeros(3, 2).t(), [mine(3, 2).t()] * RANKS
    ),
    "strided reduce_scatter": lambda: dist.reduce_scatter(mine(2), [mine(4)[::2]] * RANKS),
    "strided rows": lambda: dist.all_to_all_single(mine(3), mine(6)[::2]),
    "expanded outputs": lambda: dist.all_gather(
        [torch.zeros(1).expand(2) for _ in range(RANKS)], mine(2)
    ),
    "leaf outputs": lambda: dist.all_gather([leaf() for _ in range(RANKS)], mine(2)),
    "a leaf reduced": lambda: dist.all_reduce(leaf()),
    "leaves coalesced": lambda: world().allreduce_coalesced([leaf()]).wait(),
    "a leaf scattered to": lambda: dist.reduce_scatter(leaf(), rooms(2)),
    "stacking": lambda: gather_flat(torch.zeros(3, 2), mine(2)),
    "flattening": lambda: gather_flat(torch.zeros(12), mine(2, 2)),
    "scattering a stack": lambda: scatter_flat(mine(2), torch.zeros(3, 2)),
    "uneven all_gather": lambda: dist.all_gather(
        [torch.zeros(rank + 1) for rank in range(RANKS)], mine(dist.get_rank() + 1)
    ),
    "uneven all_to_all": lambda: dist.all_to_all(
        [torch.zeros(dist.get_rank() + rank) for rank in range(RANKS)],
        [torch.zeros(dist.get_rank() + rank) for rank in range(RANKS)],
    ),
    "outputs of another shape": lambda: dist.all_gather(rooms(2, 3), mine(6)),
    "scattered to another shape": lambda: dist.reduce_scatter(mine(2, 3), rooms(6)),
    "uneven reduce_scatter": lambda: dist.reduce_scatter(
        mine(dist.get_rank() + 1), [torch.zeros(rank + 1) for rank in range(RANKS)]
    ),
    "exchange of another shape": lambda: dist.all_to_all_single(mine(3, 2), mine(6)),
    "exchange that does not divide": lambda: dist.all_to_all_single(mine(4), mine(4)),
    "exchange of different sizes": lambda: dist.all_to_all_single(mine(6), mine(3)),
    "short list": lambda: dist.all_gather(rooms(2)[:2], mine(2)),
    "long list": lambda: dist.all_gather([*rooms(2), mine(2)], mine(2)),
    "a flat gather too small": lambda: gather_flat(torch.zeros(5), mine(2)),
    "a flat gather of another dtype": lambda: gather_flat(torch.zeros(6).double(), mine(2)),
    "a flat scatter too large": lambda: scatter_flat(mine(2), mine(7)),
    "wrong root": lambda: dist.broadcast(mine(2), 3),
    "wrong root of reduce": lambda: dist.reduce(mine(2), 3),
    "sparse sum": sparse,
    "sparse maximum": lambda: sparse(dist.ReduceOp.MAX),
    "sparse sum of bool": lambda: sparse(dtype=torch.bool),
    "sparse sum of int16": lambda: sparse(dtype=torch.int16),
    "sparse broadcast": lambda: dist.broadcast(torch.eye(2).to_sparse(), 0),
    "sparse gather": lambda: dist.all_gather(rooms(2, 2), torch.eye(2).to_sparse()),
    "compressed sum": lambda: dist.all_reduce(torch.eye(2).to_sparse_csr()),
    "no tensors": lambda: world().allreduce([]),
    "two tensors reduced to one root": lambda: world().reduce([mine(2), mine(2)]),
    "tensors of two shapes": lambda: world().allreduce([mine(2), mine(3)]),
    "tensors of two dtypes": lambda: world().allreduce_coalesced([mine(2), mine(2).int()]),
    "one dtype of outputs too many": lambda: world().allgather_coalesced(
        [[room.double()] for room in rooms(2)], [mine(2)]
    ),
    "lists for two outputs": lambda: world().reduce_scatter(
        [mine(2), mine(2)], [rooms(2), rooms(2)]
    ),
    "gather": lambda: dist.gather(mine(2), on_root(rooms(2))),
    "scatter": lambda: dist.scatter(torch.zeros(2), on_root(rooms(2))),
}

WRONG: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {}
"""What Gloo gets wrong: what it leaves in memory, and what would be right."""


def wrong(function: Callable[[], tuple[Tensor, Tensor]]) -> None:
    WRONG[function.__name__] = function


@wrong
def all_reduce_of_a_slice() -> tuple[Tensor, Tensor]:
    memory = torch.arange(8.0)
    dist.all_reduce(memory[::2])
    right = torch.arange(8.0)
    right[::2] *= RANKS
    return memory, right


@wrong
def broadcast_of_a_slice() -> tuple[Tensor, Tensor]:
    memory = mine(8)
    right = mine(8)
    right[::2] = torch.arange(8.0)[::2]
    dist.broadcast(memory[::2], 0)
    return memory, right if dist.get_rank() else memory


@wrong
def reduce_of_a_slice() -> tuple[Tensor, Tensor]:
    memory = torch.arange(8.0)
    dist.reduce(memory[::2], 0)
    right = torch.arange(8.0)
    right[::2] *= RANKS
    return memory, right if dist.get_rank() == 0 else memory


@wrong
def scatter_to_transposed() -> tuple[Tensor, Tensor]:
    output = torch.zeros(3, 2).t()
    dist.scatter(output, on_root([torch.arange(6.0).view(2, 3)] * RANKS))
    return output, torch.arange(6.0).view(2, 3)


@wrong
def reduce_scatter_of_transposed() -> tuple[Tensor, Tensor]:
    output, given = torch.zeros(2, 3), torch.arange(6.0).view(3, 2).t()
    dist.reduce_scatter(output, [given] * RANKS)
    return output, given * RANKS


@wrong
def exchange_into_transposed() -> tuple[Tensor, Tensor]:
    output = torch.zeros(2, 3).t()
    dist.all_to_all_single(output, torch.arange(6.0).view(3, 2))
    return output, torch.arange(6.0).view(3, 2)[dist.get_rank()].expand(3, 2)


@wrong
def reduce_scatter_to_a_slice() -> tuple[Tensor, Tensor]:
    memory = torch.zeros(4)
    dist.reduce_scatter(memory[::2], [torch.arange(2.0)] * RANKS)
    right = torch.zeros(4)
    right[::2] = torch.arange(2.0) * RANKS
    return memory, right


@wrong
def all_reduce_of_different_orders() -> tuple[Tensor, Tensor]:
    given = torch.arange(6.0).view(2, 3)
    tensor = given.clone() if dist.get_rank() else given.t().contiguous().t()
    dist.all_reduce(tensor)
    return tensor, given * RANKS


@wrong
def scatter_of_sums_of_different_orders() -> tuple[Tensor, Tensor]:
    given = torch.arange(18.0).view(6, 3)
    output = torch.zeros(2, 3)
    scatter_flat(output, given.clone() if dist.get_rank() else given.t().contiguous().t())
    rows = 2 * dist.get_rank()
    return output, given[rows : rows + 2] * RANKS


def answer(call: Callable[[], Any]) -> frozenset[str]:
    """The classes that catch what was raised; none if nothing was."""
    try:
        work = call()
        if isinstance(work, dist.Work):
            work.wait()
    except KINDS as error:
        return frozenset(kind.__name__ for kind in KINDS if isinstance(error, kind))
    return frozenset()


def main(rank: str, folder: str, *wanted: str) -> None:
    """One Gloo process: make all calls, leave the answers in a file."""
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Gloo writes every error there, too
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    limit = timedelta(seconds=20)
    dist.init_process_group(
        "gloo", store=store, rank=int(rank), world_size=RANKS, timeout=limit
    )
    found: dict[str, Any] = {}
    if "quick" in wanted:
        found = {name: answer(call) for name, call in (*CALLS.items(), *by_dtype(SOME_DTYPES))}
        found |= {name: program() for name, program in WRONG.items()}
    else:
        found = {name: answer(call) for name, call in by_dtype(MORE_DTYPES)}
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.all_reduce(torch.zeros(1))  # a barrier would raise earlier errors again, sometimes
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
