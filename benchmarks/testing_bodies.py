"""The fifty small tests that `testing.py` runs in every harness alike.

Each is a function of (rank, world_size) and runs on every rank with the default group there.
They use what all contenders can do: torch's threaded group has no send and no receive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

# DDP imports this at its first use, which takes a second. torch's own classes import it with
# their module; here it is part of the start-up for everybody.
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

Body = Callable[[int, int], None]

gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Its name since torch 2.13, and the one before."""


def all_reduce(rank: int, world_size: int, *, op: str, dtype: str) -> None:
    tensor = torch.full((8,), rank + 1, dtype=getattr(torch, dtype))
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
    ranks = torch.arange(1, world_size + 1)
    expected = {"SUM": ranks.sum(), "MAX": world_size, "MIN": 1, "PRODUCT": ranks.prod()}[op]
    assert tensor.tolist() == [int(expected)] * 8


def broadcast(rank: int, world_size: int, *, source: int) -> None:
    tensor = torch.full((4,), float(rank))
    dist.broadcast(tensor, src=source)
    assert tensor.eq(source).all()


def all_gather(rank: int, world_size: int, *, size: int) -> None:
    outputs = [torch.zeros(size) for _ in range(world_size)]
    dist.all_gather(outputs, torch.full((size,), float(rank)))
    assert [int(output[0]) for output in outputs] == list(range(world_size))


def all_gather_into(rank: int, world_size: int, *, size: int) -> None:
    output = torch.zeros(size * world_size)
    gather_into(output, torch.full((size,), float(rank)))
    assert output.view(world_size, size)[:, 0].tolist() == list(range(world_size))


def reduce_scatter(rank: int, world_size: int, *, size: int) -> None:
    output = torch.zeros(size)
    dist.reduce_scatter(output, [torch.full((size,), float(n)) for n in range(world_size)])
    assert output.tolist() == [float(rank * world_size)] * size


def all_to_all_single(rank: int, world_size: int, *, size: int) -> None:
    output = torch.zeros(world_size * size)
    dist.all_to_all_single(output, torch.full((world_size * size,), float(rank)))
    assert output.view(world_size, size)[:, 0].tolist() == list(range(world_size))


def gather(rank: int, world_size: int, *, root: int) -> None:
    outputs = [torch.zeros(3) for _ in range(world_size)] if rank == root else None
    dist.gather(torch.full((3,), float(rank)), outputs, dst=root)
    if outputs is not None:
        assert [int(output[0]) for output in outputs] == list(range(world_size))


def scatter(rank: int, world_size: int, *, root: int) -> None:
    inputs = [torch.full((3,), float(n)) for n in range(world_size)] if rank == root else None
    output = torch.zeros(3)
    dist.scatter(output, inputs, src=root)
    assert output.eq(rank).all()


def all_gather_object(rank: int, world_size: int, *, key: str) -> None:
    gathered: list[object] = [None] * world_size
    dist.all_gather_object(gathered, {key: rank})
    assert gathered == [{key: n} for n in range(world_size)]


def barriers(rank: int, world_size: int, *, times: int) -> None:
    for _ in range(times):
        dist.barrier()
    assert dist.get_world_size() == world_size


def subgroup(rank: int, world_size: int, *, members: int) -> None:
    group = dist.new_group(list(range(members)))
    if rank < members:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert tensor.eq(members).all()


def training(rank: int, world_size: int, *, width: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(width, 1))
    model(torch.full((2, width), float(rank))).sum().backward()
    expected = 2 * sum(range(world_size)) / world_size
    assert model.module.weight.grad is not None
    assert model.module.weight.grad.eq(expected).all()


BODIES: dict[str, Body] = {
    **{
        f"all_reduce_{op}_{dtype}".lower(): partial(all_reduce, op=op, dtype=dtype)
        for op in ("SUM", "MAX", "MIN", "PRODUCT")
        for dtype in ("float32", "float64", "int64")
    },
    **{f"broadcast_{n}": partial(broadcast, source=n) for n in range(4)},
    **{f"all_gather_{n}": partial(all_gather, size=n) for n in (1, 16, 256, 4096)},
    **{f"gather_into_{n}": partial(all_gather_into, size=n) for n in (1, 16, 256, 4096)},
    **{f"reduce_scatter_{n}": partial(reduce_scatter, size=n) for n in (1, 16, 256, 4096)},
    **{f"all_to_all_{n}": partial(all_to_all_single, size=n) for n in (1, 16, 256, 4096)},
    **{f"gather_{n}": partial(gather, root=n) for n in range(4)},
    **{f"scatter_{n}": partial(scatter, root=n) for n in range(4)},
    **{f"objects_{key}": partial(all_gather_object, key=key) for key in ("a", "b", "c")},
    **{f"barriers_{n}": partial(barriers, times=n) for n in (1, 5, 10)},
    **{f"subgroup_{n}": partial(subgroup, members=n) for n in (1, 2, 3)},
    "training": partial(training, width=8),
}

assert len(BODIES) == 50, len(BODIES)
