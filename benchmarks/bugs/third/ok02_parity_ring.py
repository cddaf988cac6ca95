# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: blocking ring on an odd number of ranks; even ranks send first, odd ones receive first, and the 2->0 edge still resolves
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
nxt, prv = (rank + 1) % ws, (rank - 1) % ws
x = torch.full((1 << 20,), float(rank))
y = torch.empty_like(x)
for _ in range(3):
    if rank % 2 == 0:
        dist.send(x, nxt)
        dist.recv(y, prv)
    else:
        dist.recv(y, prv)
        dist.send(x, nxt)
    x, y = y, x
assert x[0].item() == rank
dist.destroy_process_group()
