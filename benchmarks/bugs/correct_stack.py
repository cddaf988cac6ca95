"""Programs of the layers above that are right and look odd."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bugs.f_stack import Branching
from benchmarks.bugs.programs import fine


@fine("X61", ranks=3, what="DDP join with uneven inputs")
def join_uneven(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    with Join([model]):
        for _ in range(2 + rank):
            model(torch.ones(1, 2)).sum().backward()


@fine("X62", what="find_unused_parameters with other sets on each rank")
def unused_parameters(rank: int, world: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Branching(), find_unused_parameters=True)
    for step in range(3):
        model(torch.ones(1, 2), (rank + step) % 2 == 0).sum().backward()


@fine("X63", what="gradients accumulated under no_sync by all ranks")
def accumulated(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2)).sum().backward()


@fine("X64", what="FSDP2 trains a few steps")
def fsdp(rank: int, world: int) -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@fine("X65", ranks=4, what="a mesh: each rank talks on its own row and column")
def mesh(rank: int, world: int) -> None:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(torch.ones(2), group=grid.get_group("tp"))
    dist.all_reduce(torch.ones(3), group=grid.get_group("dp"))


@fine("X66", what="DTensors change their placement")
def placements(rank: int, world: int) -> None:
    grid = init_device_mesh("cpu", (world,))
    weights = distribute_tensor(torch.arange(8.0).view(4, 2), grid, [Shard(0)])
    assert isinstance(weights, DTensor)
    weights.redistribute(grid, [Shard(1)]).redistribute(grid, [Replicate()])
    weights.full_tensor().sum().item()


@fine("X67", what="a pipeline of two stages")
def pipeline(rank: int, world: int) -> None:
    stage = PipelineStage(nn.Linear(2, 2), rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2)
    if rank == 0:
        schedule.step(torch.ones(4, 2))
    else:
        schedule.step()


@fine("X68", what="batches of another size on each rank")
def batches_of_any_size(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    for size in (1 + rank, 3, 4 - rank):
        model(torch.ones(size, 2)).sum().backward()


@fine("X69", what="an optimizer whose states are spread over the ranks")
def zero(rank: int, world: int) -> None:
    with warnings.catch_warnings():  # torch's own, about torch.jit
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1
    )
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@fine("X70", what="a communication hook that divides in a future")
def hook(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))

    def halve(state, bucket):  # type: ignore[no-untyped-def]
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0] / world)

    model.register_comm_hook(None, halve)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


@fine("X71", ranks=4, what="experts: dispatch by counts that were exchanged, empty ones too")
def experts(rank: int, world: int) -> None:
    counts = torch.tensor([(rank * 2 + peer) % 3 for peer in range(world)])
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts)
    sent, received = torch.ones(int(counts.sum()), 2), torch.empty(int(incoming.sum()), 2)
    dist.all_to_all_single(received, sent, incoming.tolist(), counts.tolist())
    dist.all_to_all_single(sent, received, counts.tolist(), incoming.tolist())


@fine("X72", what="rank 0 saves, the others wait at a barrier")
def saved_by_one(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    if rank == 0:
        {name: value.clone() for name, value in model.module.state_dict().items()}
    dist.barrier()
