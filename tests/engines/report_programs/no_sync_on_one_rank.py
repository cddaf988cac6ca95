"""Rank 1 counts its micro batches from one, so its last backward averages nothing."""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start = 1 if rank == 1 else 0
for _ in range(3):
    optimizer.zero_grad()
    for micro in range(4):
        syncs = (micro + 1 + start) % 4 == 0
        with contextlib.nullcontext() if syncs else model.no_sync():
            model(torch.full((2, 4), 1.0 + rank + micro)).pow(2).mean().backward()
    optimizer.step()
dist.barrier()
