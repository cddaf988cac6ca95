"""Rank 1 uses the pair's group after that of all ranks, rank 0 before it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
x = torch.ones(1)
if rank == 0:
    dist.all_reduce(x, group=pair)
dist.all_reduce(x)
if rank == 1:
    dist.all_reduce(x, group=pair)
