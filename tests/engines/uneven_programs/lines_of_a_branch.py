"""Rank 0 broadcasts from a line of its own, once too often."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(3 if rank else 4):
    if rank == 0:
        dist.broadcast(torch.ones(2), src=0)
    else:
        dist.broadcast(torch.zeros(2), src=0)
dist.barrier()
