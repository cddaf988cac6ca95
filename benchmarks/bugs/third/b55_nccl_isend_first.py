# ranks: 2
# kind: backend-hazard
# faulty: any
# lines: 13,14
# profile: nccl
# what: both ranks issue an unbatched isend before their irecv to one another; fine on Gloo, on NCCL both sends queue in front of the receives and hang (use batch_isend_irecv)
import torch
import torch.distributed as dist


def swap(t, peer):
    out = torch.empty_like(t)
    s = dist.isend(t, peer)
    r = dist.irecv(out, peer)
    s.wait()
    r.wait()
    return out


dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.full((128,), float(rank))
for _ in range(3):
    x = swap(x, 1 - rank)
dist.barrier()
dist.destroy_process_group()
