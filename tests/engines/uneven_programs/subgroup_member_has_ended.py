"""Rank 1 leaves while rank 0 still needs it in a group of the two."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
dist.barrier()
if rank == 0:
    dist.all_reduce(torch.ones(1), group=pair)
