"""Rank 1 leaves out one collective of a group and goes on to that of all ranks."""

import torch
import torch.distributed as dist


def step(active):
    x = torch.ones(4)
    if active:
        dist.all_reduce(x, group=pair)
    dist.all_reduce(x)


dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
for i in range(3):
    step(rank == 0 or (rank == 1 and i < 2))
