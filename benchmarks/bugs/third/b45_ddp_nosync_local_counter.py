# ranks: 2
# kind: deadlock|mismatch
# faulty: any
# lines: 34,38
# profile: gloo
# what: gradient accumulation counts only non-empty samples; rank 1 skips one, so it syncs gradients twice instead of three times: rank 0 is in the third gradient all_reduce while rank 1 is in barrier
import contextlib

import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

ACC = 2


def batches(rank):
    for i in range(6):
        yield None if (rank == 1 and i == 4) else torch.full((2, 3), float(i))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(3, 2))
micro = 0
for x in batches(rank):
    if x is None:
        continue
    micro += 1
    last = micro % ACC == 0
    ctx = contextlib.nullcontext() if last else model.no_sync()
    with ctx:
        model(x).sum().backward()
    if last:
        for p in model.parameters():
            p.grad = None
dist.barrier()
dist.destroy_process_group()
