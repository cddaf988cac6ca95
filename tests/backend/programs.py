"""Programs for three ranks that must give the same under Phalanx and on real Gloo.

`test_against_gloo.py` runs them in threads and, through this file's `main`, in processes. A
program is a function without arguments, called on each rank with the default group ready.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.backend.direct_programs import DIRECT, LIST_TO_ALL, RANKS

PROGRAMS: dict[str, Callable[[], Any]] = dict(DIRECT)

# torch before 2.13 has only the names that 2.13 warns about.
all_gather_flat = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_flat = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[function.__name__] = function
    return function


def mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that differs from rank to rank, the same in every run."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return (torch.rand(shape, generator=generator) * 9 + 1).to(dtype)


def neighbours() -> tuple[int, int]:
    return (dist.get_rank() - 1) % RANKS, (dist.get_rank() + 1) % RANKS


@program
def who_is_who() -> Any:
    group = dist.new_group([0, 2])
    return (
        dist.get_rank(),
        dist.get_world_size(),
        dist.get_backend(),
        dist.get_rank(group),
        dist.get_world_size(group),
        dist.get_process_group_ranks(None),
        group is dist.GroupMember.NON_GROUP_MEMBER,
    )


@program
def broadcast() -> Any:
    tensors = [mine(3), mine(2, 2, dtype=torch.int64), mine()]
    for root, tensor in enumerate(tensors):
        dist.broadcast(tensor, src=root)
    return tensors


@program
def all_reduce_operations() -> Any:
    found = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        found.append(mine(4, 3))
        dist.all_reduce(found[-1], op)
    return found


@program
def all_reduce_bits() -> Any:
    found = []
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        found.append(mine(5, dtype=torch.int32))
        dist.all_reduce(found[-1], op)
    return found


@program
def all_reduce_dtypes() -> Any:
    dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.complex64]
    integers = [torch.int8, torch.uint8, torch.int32, torch.int64]
    found = [mine(6, dtype=dtype) for dtype in (*dtypes, *integers)]
    for tensor in found:
        dist.all_reduce(tensor)
    return found


@program
def all_reduce_sparse() -> Any:
    sparse = torch.sparse_coo_tensor(
        [[dist.get_rank(), 3]], [1.0, 10.0], (4,), check_invariants=True
    )
    dist.all_reduce(sparse)
    return sparse.to_dense()


@program
def all_reduce_odd_shapes() -> Any:
    found = [torch.empty(0), mine(), mine(1), mine(2, 0, 3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in found]
    for work in works:
        work.wait()
    return found


@program
def reduce() -> Any:
    found = []
    for root in range(RANKS):
        tensor = mine(3)
        dist.reduce(tensor, dst=root)
        found.append(tensor if dist.get_rank() == root else None)
    return found


@program
def all_gather() -> Any:
    found = [torch.zeros(2, 2) for _ in range(RANKS)]
    dist.all_gather(found, mine(2, 2))
    return found


@program
def all_gather_into_one() -> Any:
    """Concatenating; stacking is what Gloo does not have."""
    now, later = torch.zeros(6, 2), torch.zeros(3)
    all_gather_flat(now, mine(2, 2))
    all_gather_flat(later, mine(1), async_op=True).wait()
    return now, later


@program
def gather_and_scatter() -> Any:
    rank = dist.get_rank()
    rooms = [torch.zeros(2) for _ in range(RANKS)] if rank == 1 else None
    dist.gather(mine(2), rooms, dst=1)
    piece = torch.zeros(2)
    dist.scatter(piece, rooms, src=1)
    return rooms, piece


@program
def reduce_scatter() -> Any:
    by_list, flat = torch.zeros(2), torch.zeros(2)
    dist.reduce_scatter(by_list, list(mine(3, 2)))
    reduce_scatter_flat(flat, mine(6), dist.ReduceOp.MAX)
    return by_list, flat


@program
def all_to_all() -> Any:
    rank = dist.get_rank()
    even = torch.zeros(6)
    dist.all_to_all_single(even, mine(6))
    outgoing = [rank + to for to in range(RANKS)]
    incoming = [rank + source for source in range(RANKS)]
    uneven = torch.zeros(sum(incoming), 2)
    dist.all_to_all_single(uneven, mine(sum(outgoing), 2), incoming, outgoing)
    rooms = [torch.zeros(2) for _ in range(RANKS)]
    if LIST_TO_ALL:
        dist.all_to_all(rooms, list(mine(3, 2)))
    return even, uneven, rooms


@program
def coalesced() -> Any:
    found = [mine(2), mine(3)]
    with _coalescing_manager():
        for tensor in found:
            dist.all_reduce(tensor)
    return found


@program
def ring() -> Any:
    left, right = neighbours()
    room = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.send(mine(4), right)
        dist.recv(room, left)
    else:
        dist.recv(room, left)
        dist.send(mine(4), right)
    return room


@program
def tags_out_of_order() -> Any:
    left, right = neighbours()
    rooms = [torch.zeros(1) for _ in range(3)]
    works = [dist.isend(mine(1) * tag, right, tag=tag) for tag in range(3)]
    works += [dist.irecv(rooms[tag], left, tag=tag) for tag in (2, 0, 1)]
    for work in works:
        work.wait()
    return rooms


@program
def any_source() -> Any:
    if dist.get_rank():
        return dist.send(mine(1), dst=0)
    found = {}
    for _ in range(RANKS - 1):
        room = torch.zeros(1)
        found[dist.recv(room)] = room.item()
    return [found[rank] for rank in sorted(found)]


@program
def batch() -> Any:
    left, right = neighbours()
    rooms = [torch.zeros(2), torch.zeros(2)]
    operations = [
        dist.P2POp(dist.isend, mine(2), right, tag=1),
        dist.P2POp(dist.irecv, rooms[0], left, tag=1),
        dist.P2POp(dist.isend, mine(2) + 1, left, tag=2),
        dist.P2POp(dist.irecv, rooms[1], right, tag=2),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return rooms


@program
def objects() -> Any:
    rank = dist.get_rank()
    mine_too = {"rank": rank, "text": "x" * (1 + 10 * rank)}
    everywhere: list[Any] = [None] * RANKS
    dist.all_gather_object(everywhere, mine_too)
    gathered = [None] * RANKS if rank == 2 else None
    dist.gather_object((rank, None), gathered, dst=2)
    one: list[Any] = [None]
    dist.scatter_object_list(one, [10, 20, 30] if rank == 0 else None, src=0)
    shared = ["a", 1] if rank == 1 else [None, None]
    dist.broadcast_object_list(shared, src=1)
    return everywhere, gathered, one, shared


@program
def objects_point_to_point() -> Any:
    if dist.get_rank() == 0:
        dist.send_object_list([1, "two", {3}], dst=2)
    room: list[Any] = [None, None, None]
    source = dist.recv_object_list(room, src=0) if dist.get_rank() == 2 else None
    return source, room


@program
def subgroup() -> Any:
    group = dist.new_group([2, 0])
    tensor = mine(2)
    if dist.get_rank() != 1:
        dist.all_reduce(tensor, group=group)
        dist.broadcast(tensor, src=2, group=group)
    return tensor


@program
def subgroups_by_enumeration() -> Any:
    group, _ = dist.new_subgroups_by_enumeration([[0, 1], [2]])
    tensor = mine(2)
    dist.all_reduce(tensor, group=group)
    return tensor


@program
def mesh() -> Any:
    grid = init_device_mesh("cpu", (1, 3), mesh_dim_names=("a", "b"))
    tensor = mine(2)
    dist.all_reduce(tensor, group=grid.get_group("b"))
    dist.all_reduce(tensor, group=grid["a"].get_group())
    return tensor, list(grid.get_coordinate() or ())


@program
def futures() -> Any:
    tensor = mine(2)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] * 2).wait(), tensor


@program
def work_results() -> Any:
    work = dist.all_reduce(mine(2), async_op=True)
    waited = work.wait()
    return waited, work.is_completed(), work.wait(timedelta(seconds=30)), work.result()


@program
def functional_forms() -> Any:
    world = dist.group.WORLD
    return (
        functional.wait_tensor(functional.all_reduce(mine(2), "sum", world)),
        functional.wait_tensor(functional.broadcast(mine(2), 1, world)),
        functional.wait_tensor(functional.all_to_all_single(mine(3), None, None, world)),
    )


@program
def differentiable_forms() -> Any:
    leaf = mine(3).requires_grad_()
    total = differentiable.all_reduce(leaf * leaf)
    gathered = torch.stack(differentiable.all_gather(leaf))
    (total.sum() + (gathered**2).sum()).backward()
    return total.detach(), leaf.grad


@program
def data_parallel() -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimiser = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        parallel(mine(5, 4)).pow(2).mean().backward()
        optimiser.step()
    return [parameter.detach() for parameter in model.parameters()]


@program
def distributed_tensors() -> Any:
    grid = init_device_mesh("cpu", (3,))
    torch.manual_seed(0)
    sharded = distribute_tensor(torch.arange(15.0).reshape(5, 3), grid, [Shard(0)])
    turned = sharded.redistribute(placements=[Shard(1)])
    product = (
        DTensor.from_local(mine(2, 3), grid, [Shard(0)])
        @ turned.redistribute(placements=[Replicate()]).t()
    )
    return (
        sharded.to_local(),
        turned.to_local(),
        product.full_tensor(),
        sharded.sum().full_tensor(),
    )


@program
def barriers() -> Any:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    return dist.monitored_barrier(timeout=timedelta(seconds=30))


@program
def errors() -> Any:
    """The classes that a program may catch: as sets, of which ours may be the larger."""
    found = []
    for call in (
        lambda: dist.all_reduce(torch.ones(1, dtype=torch.complex64), dist.ReduceOp.MAX),
        lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 1], [1, 1, 1]),
        lambda: dist.send(torch.ones(1), dst=dist.get_rank()),
        lambda: dist.all_gather([torch.ones(1)] * 2, torch.ones(1)),
        lambda: dist.all_reduce([torch.ones(1)]),
        lambda: dist.init_process_group("gloo"),
    ):
        try:
            call()
            found.append(frozenset())
        except Exception as error:
            kinds = (ValueError, TypeError, RuntimeError)
            found.append(frozenset(c.__name__ for c in kinds if isinstance(error, c)))
    # Gloo's barrier would raise once more what a call before it failed with, sometimes
    dist.all_reduce(torch.zeros(1))
    return found


def main(rank: str, folder: str) -> None:
    """One Gloo process: run everything, leave the results in a file."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=RANKS)
    results = {name: function() for name, function in PROGRAMS.items()}
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
