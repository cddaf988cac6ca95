"""Check the processes engine on a machine with a GPU: `python tests/device/check_processes.py`
with `src` on PYTHONPATH; needs nothing but torch. Not collected by pytest.

NCCL with as many ranks as there are GPUs, and Gloo with tensors of the first GPU.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import phalanx


def on_gpu() -> float:
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    tensor = torch.full((1000,), float(dist.get_rank() + 1), device=device)
    dist.all_reduce(tensor)
    return tensor[0].item()


def a_tensor_of_the_gpu() -> torch.Tensor:
    return torch.full((3,), float(dist.get_rank()), device="cuda:0")


def train_a_step() -> float:
    """Loads what the parent of ranks will load for the next world."""
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    loss = model(torch.ones(2, 4, device=device)).sum()
    loss.backward()
    return loss.item()


def fail_on_the_gpu() -> None:
    if dist.get_rank() == 0:
        raise ValueError("as planned")
    dist.all_reduce(torch.ones(1, device="cuda:0"))


def main() -> int:
    gpus = torch.cuda.device_count()
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {gpus} GPU")
    for backend, ranks in (("gloo", 3), ("nccl", gpus), ("cpu:gloo,cuda:nccl", gpus)):
        started = time.perf_counter()
        with phalanx.World(
            ranks=ranks, engine="processes", backend=backend, timeout=120.0
        ) as world:
            found = world.run(on_gpu)
            assert found == [ranks * (ranks + 1) / 2] * ranks, found
            assert len(set(world.run(train_a_step))) == 1
            tensors = world.run(a_tensor_of_the_gpu)
            assert [each[0].item() for each in tensors] == list(range(ranks))
            if ranks > 1:
                try:
                    world.run(fail_on_the_gpu)
                except phalanx.RankFailedError as error:
                    assert str(error).startswith("rank 0 raised ValueError: as planned")
                else:
                    raise AssertionError("no failure was reported")
                assert world.run(on_gpu) == found
        print(f"{backend}, {ranks} ranks: ok, {time.perf_counter() - started:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
