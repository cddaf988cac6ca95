"""Rank 0 gives up a batch that is too large; its other collective meets that of the others."""

import torch
import torch.distributed as dist


def step(size):
    try:
        if size > 100:
            raise MemoryError(f"{size} rows")
        dist.all_reduce(torch.ones(1))
    except MemoryError:
        print(end="")


dist.init_process_group("gloo")
rank = dist.get_rank()
for i in range(4):
    step(1000 if (rank, i) == (0, 1) else 10)
    count = torch.ones(1)
    dist.all_reduce(count)
