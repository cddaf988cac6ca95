# ranks: 3
# kind: in-flight-buffer
# faulty: 2
# lines: 29,31
# profile: gloo
# what: rank 2 sums the buffer `extra` before its irecv (from rank 1) was waited for; only the left request is waited on
import torch
import torch.distributed as dist


def halo(local, left, right):
    reqs = {}
    lbuf = rbuf = None
    if left is not None:
        lbuf = torch.zeros(2)
        reqs["l"] = dist.irecv(lbuf, left, tag=1)
    if right is not None:
        rbuf = torch.zeros(2)
        reqs["r"] = dist.irecv(rbuf, right, tag=2)
    return lbuf, rbuf, reqs


dist.init_process_group("gloo")
rank = dist.get_rank()
local = torch.arange(6.0) + rank
if rank == 2:
    lbuf, rbuf, reqs = halo(local, 0, None)
    extra = torch.zeros(2)
    reqs["x"] = dist.irecv(extra, 1, tag=3)
    reqs["l"].wait()
    total = local.sum() + lbuf.sum() + extra.sum()
    reqs["x"].wait()
elif rank == 0:
    dist.send(local[-2:].clone(), 2, tag=1)
else:
    dist.send(local[:2].clone(), 2, tag=3)
dist.barrier()
dist.destroy_process_group()
