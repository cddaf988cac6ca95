# ranks: 4
# kind: mismatch
# faulty: any
# lines: 13
# profile: gloo
# what: each rank calls new_group with its own pair only ([0,1] on 0,1 and [2,3] on 2,3); the call has to have the same arguments on all ranks
import torch
import torch.distributed as dist


def dp_group_of(rank, size):
    start = rank // size * size
    return dist.new_group(list(range(start, start + size)))


dist.init_process_group("gloo")
rank = dist.get_rank()
g = dp_group_of(rank, 2)
x = torch.full((3,), float(rank))
dist.all_reduce(x, group=g)
dist.barrier()
dist.destroy_process_group()
