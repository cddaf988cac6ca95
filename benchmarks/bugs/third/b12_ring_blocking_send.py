# ranks: 3
# kind: deadlock|backend-hazard
# faulty: any
# lines: 13
# profile: gloo
# what: every rank does a blocking send to its right neighbour before it receives; a cycle of sends that works only if messages are buffered
import torch
import torch.distributed as dist


def rotate(kv, rank, ws):
    out = torch.empty_like(kv)
    dist.send(kv, (rank + 1) % ws)
    dist.recv(out, (rank - 1) % ws)
    return out


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
kv = torch.full((1 << 23,), float(rank))
for _ in range(ws - 1):
    kv = rotate(kv, rank, ws)
dist.destroy_process_group()
