"""Rank 3 is a member of the group and never calls on it."""

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
some = dist.new_group([1, 2, 3])
if rank in (1, 2):
    dist.barrier(group=some)
dist.barrier()
