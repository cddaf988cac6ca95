# ranks: 3
# kind: deadlock|unmatched-message
# faulty: any
# lines: 19,20
# profile: gloo
# what: every rank sends right and also receives from the right (prev/next mixed up): no send meets a receive on 3 ranks (with 2 it works)
import torch
import torch.distributed as dist


def ring_shift(t, rank, ws):
    out = torch.empty_like(t)
    nxt = (rank + 1) % ws
    prv = (rank + 1 + ws) % ws
    ops = [
        dist.P2POp(dist.isend, t, nxt),
        dist.P2POp(dist.irecv, out, prv),
    ]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    return out


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
ring_shift(torch.full((4,), float(rank)), rank, ws)
dist.destroy_process_group()
