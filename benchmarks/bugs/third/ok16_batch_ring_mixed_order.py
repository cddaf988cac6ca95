# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: batch_isend_irecv ring where rank 1 lists the receive before the send
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
t = torch.full((8,), float(rank))
for _ in range(ws):
    out = torch.empty_like(t)
    ops = [dist.P2POp(dist.isend, t, (rank + 1) % ws), dist.P2POp(dist.irecv, out, (rank - 1) % ws)]
    if rank == 1:
        ops.reverse()
    reqs = dist.batch_isend_irecv(ops)
    while reqs:
        reqs.pop().wait()
    t = out
assert t[0] == rank
dist.destroy_process_group()
