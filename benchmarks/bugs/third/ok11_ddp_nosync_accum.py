# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: DDP gradient accumulation with no_sync in the same steps on all ranks
import contextlib

import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(4):
    sync = i % 2 == 1
    with contextlib.nullcontext() if sync else model.no_sync():
        model(torch.randn(4, 4) + rank).sum().backward()
    if sync:
        opt.step()
        opt.zero_grad()
if rank == 0:
    # bypasses the wrapper: no communication
    model.module.eval()
    model.module(torch.ones(1, 4))
dist.barrier()
dist.destroy_process_group()
