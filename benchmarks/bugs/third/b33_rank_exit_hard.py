# ranks: 3
# kind: rank-failed
# faulty: 0
# lines: 15,26
# profile: gloo
# what: rank 0's memory guard leaves with os._exit(7) in step 2; the others hang in / fail out of reduce_scatter because rank 0 died
import os

import torch
import torch.distributed as dist


def guard(used, limit):
    if used > limit:
        os._exit(7)


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
used = 0
for step in range(5):
    used += 100 if rank == 0 else 10
    guard(used, 250)
    inp = torch.ones(2 * ws)
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, inp)
dist.destroy_process_group()
