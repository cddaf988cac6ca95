# ranks: 3
# kind: invalid-call
# faulty: 2
# lines: 15
# profile: gloo
# what: the last rank forgets the wrap-around and sends to rank 3 in a world of 3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
edge = torch.full((4,), float(rank))
ghost = torch.empty(4)
if rank % 2 == 0:
    dist.send(edge, rank + 1)
else:
    dist.recv(ghost, rank - 1)
dist.barrier()
dist.destroy_process_group()
