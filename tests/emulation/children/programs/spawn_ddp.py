"""The classic: `mp.spawn` and a worker that sets the address itself."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


def worker(rank, world_size, steps):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29611"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(rank)
    model = DistributedDataParallel(Net())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimiser.step()
    total = sum(p.sum() for p in model.parameters())
    print(f"rank {rank} loss {loss.item():.5f} parameters {total.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(3, 4), nprocs=3, join=True)
    print("parent is done")
