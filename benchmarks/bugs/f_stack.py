"""Class F in the layers above: DDP, FSDP2, DTensor, device meshes, pipelines, checkpoints."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bugs.programs import bug


class Branching(nn.Module):
    """Uses its second layer only if asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(2, 2)
        self.sometimes = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = self.always(x)
        return self.sometimes(x) if both else x


@bug(
    "F18",
    "mismatch|deadlock",
    ranks=3,
    faulty=(1,),
    what="DDP whose parameter is unused on one rank only",
)
def ddp_unused_on_one(rank: int, world: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Branching())
    loss = model(torch.ones(1, 2), rank != 1).sum()
    loss.backward()  # <- here
    dist.barrier()  # <- here


@bug(
    "F72",
    "mismatch|deadlock|rank-failed",
    ranks=3,
    faulty=(1,),
    what="the same, and DDP itself complains in the next step",
)
def ddp_unused_for_two_steps(rank: int, world: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Branching())
    for _ in range(2):
        loss = model(torch.ones(1, 2), rank != 1).sum()  # <- here
        loss.backward()  # <- here


@bug("F21", "deadlock|mismatch", ranks=3, faulty=(0,), what="an FSDP forward on rank 0 only")
def fsdp_forward_on_one(rank: int, world: int) -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world,))
    model = fully_shard(nn.Linear(4, 4), mesh=mesh)
    model(torch.ones(1, 4)).sum().backward()
    if rank == 0:
        model(torch.ones(1, 4))  # <- here
    dist.barrier()  # <- here


@bug(
    "F61",
    "deadlock|mismatch",
    ranks=3,
    faulty=(0,),
    what="DDP evaluates with buffers on rank 0 only",
)
def ddp_forward_on_one(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    model(torch.ones(2, 2)).sum().backward()
    if rank == 0:
        model(torch.ones(2, 2))  # <- here
    dist.all_reduce(torch.ones(1))  # <- here


@bug("F62", "deadlock|mismatch", ranks=3, faulty=(2,), what="DDP with uneven inputs, no join")
def ddp_uneven(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    for _ in range(3 - (rank == 2)):
        model(torch.ones(1, 2)).sum().backward()  # <- here
    dist.barrier()  # <- here


@bug(
    "F63",
    "mismatch|deadlock",
    ranks=3,
    faulty=(0,),
    what="full_tensor of a DTensor on rank 0 only",
)
def full_tensor_on_one(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    weights = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    if rank == 0:
        weights.full_tensor()  # <- here
    dist.barrier()  # <- here


@bug(
    "F64",
    "mismatch|deadlock",
    ranks=3,
    faulty=(1,),
    what="a DTensor printed with its norm by one rank",
)
def norm_on_one(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    weights = DTensor.from_local(torch.ones(2), mesh, [Shard(0)])
    if rank == 1:
        weights.sum().redistribute(mesh, [Replicate()])  # <- here
    dist.barrier()  # <- here


@bug("F65", "mismatch|deadlock", what="FSDP modules called in another order on one rank")
def fsdp_other_order(rank: int, world: int) -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world,))
    first = fully_shard(nn.Linear(4, 4), mesh=mesh)
    second = fully_shard(nn.Linear(4, 8), mesh=mesh)
    for module in (first, second) if rank == 0 else (second, first):
        module(torch.ones(1, 4))  # <- here


@bug(
    "F66", "mismatch|deadlock", ranks=4, faulty=(3,), what="a mesh of another shape on one rank"
)
def mesh_shape(rank: int, world: int) -> None:
    shape = (4, 1) if rank == 3 else (2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))  # <- here
    dist.all_reduce(torch.ones(1), group=mesh.get_group("dp"))  # <- here


@bug("F67", "deadlock|mismatch", what="a pipeline whose last stage has other microbatches")
def pipeline_microbatches(rank: int, world: int) -> None:
    stage = PipelineStage(nn.Linear(2, 2), rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2 + 2 * rank)
    if rank == 0:
        schedule.step(torch.ones(4, 2))  # <- here
    else:
        schedule.step()  # <- here


@bug(
    "F68",
    "mismatch|deadlock|rank-failed",
    ranks=3,
    faulty=(1,),
    what="DDP models differ in a parameter, which DDP itself refuses",
)
def ddp_models_differ(rank: int, world: int) -> None:
    DistributedDataParallel(nn.Linear(2, 3 if rank == 1 else 2))  # <- here


@bug(
    "F69", "deadlock|mismatch", ranks=3, faulty=(0,), what="a sharded state gathered by rank 0"
)
def state_on_one(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    model = fully_shard(nn.Linear(6, 6), mesh=mesh)
    if rank == 0:
        {name: value.full_tensor() for name, value in model.state_dict().items()}  # <- here
    dist.barrier()  # <- here


@bug(
    "F70",
    "mismatch|deadlock",
    ranks=3,
    faulty=(1,),
    what="a backward pass left out on one rank",
)
def backward_left_out(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    for step in range(2):
        loss = model(torch.ones(1, 2)).sum()
        if rank != 1 or step == 0:
            loss.backward()  # <- here
    dist.all_reduce(torch.ones(1))  # <- here


@bug("F71", "mismatch|deadlock", ranks=3, faulty=(0,), what="no_sync on one rank only")
def no_sync_on_one(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    if rank == 0:
        with model.no_sync():
            model(torch.ones(1, 2)).sum().backward()
    else:
        model(torch.ones(1, 2)).sum().backward()  # <- here
    dist.barrier()  # <- here


@bug(
    "F73", "crossed-order", ranks=3, faulty=(2,), what="hooks reduce gradients in another order"
)
def hooks_in_other_order(rank: int, world: int) -> None:
    first, second = (nn.Parameter(torch.ones(4)) for _ in range(2))

    def reduce_gradient(name: str, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)  # <- here

    for name, parameter in {"first": first, "second": second}.items():
        parameter.register_post_accumulate_grad_hook(partial(reduce_gradient, name))
    loss = first.sin().mul(second) if rank != 2 else second.sin().mul(first)
    loss.sum().backward()  # <- here


@bug("F74", "mismatch|deadlock", ranks=4, faulty=(3,), what="dimensions of a mesh mixed up")
def dimensions_mixed_up(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    inner, outer = ("dp", "tp") if rank == 3 else ("tp", "dp")
    dist.all_reduce(torch.ones(2), group=mesh.get_group(inner))  # <- here
    dist.all_reduce(torch.ones(3), group=mesh.get_group(outer))  # <- here
