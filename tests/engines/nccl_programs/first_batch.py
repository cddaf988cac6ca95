"""The first thing that happens on the group is a batch of two ranks."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(4)
if rank < 2:
    what = dist.isend if rank == 0 else dist.irecv
    for work in dist.batch_isend_irecv([dist.P2POp(what, tensor, 1 - rank)]):
        work.wait()
dist.barrier()
dist.destroy_process_group()
