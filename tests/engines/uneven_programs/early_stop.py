"""Every rank decides by its own metric when to stop."""

import torch
import torch.distributed as dist


def fit(losses):
    best = 100.0
    for epoch in range(10):
        dist.all_reduce(torch.ones(4))
        if losses[epoch] > best:
            break
        best = losses[epoch]
    total = torch.zeros(2)
    dist.all_reduce(total, op=dist.ReduceOp.MAX)


dist.init_process_group("gloo")
rank = dist.get_rank()
fit([10.0 - i if rank != 2 or i < 3 else 20.0 for i in range(10)])
