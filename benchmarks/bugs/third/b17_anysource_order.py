# ranks: 4
# kind: message-race
# faulty: 0
# lines: 15
# profile: gloo
# what: rank 0 collects with recv(src=None) and stores the pieces in arrival order, so the concatenation depends on timing
import torch
import torch.distributed as dist


def collect(n):
    parts = []
    for _ in range(n):
        t = torch.empty(3)
        dist.recv(t)
        parts.append(t)
    return torch.cat(parts)


dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    full = collect(dist.get_world_size() - 1)
    logits = full.view(3, 3)[0]
else:
    dist.send(torch.full((3,), float(rank)), 0)
dist.barrier()
dist.destroy_process_group()
