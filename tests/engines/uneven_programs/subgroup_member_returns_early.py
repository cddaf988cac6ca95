"""Rank 3 has nothing to exchange in the second step and returns before its group's calls."""

import torch
import torch.distributed as dist


def exchange(x, group):
    if not len(x):
        return
    dist.all_reduce(x, group=group)
    dist.barrier(group=group)


dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
for step in range(3):
    exchange(torch.ones(0 if rank == 3 and step == 1 else 4), groups[rank // 2])
    dist.all_reduce(torch.ones(1))
