# ranks: 3
# kind: mismatch|deadlock
# faulty: any
# lines: 16,25
# profile: gloo
# what: each rank flips its own coin (seeded with the rank) for whether to log histograms; some call all_gather while others are in all_reduce
import random

import torch
import torch.distributed as dist


def histogram(t):
    h = torch.histc(t, bins=4, min=0, max=4)
    out = [torch.empty(4) for _ in range(dist.get_world_size())]
    dist.all_gather(out, h)
    return torch.stack(out)


dist.init_process_group("gloo")
rank = dist.get_rank()
rng = random.Random(1000 + rank)
for step in range(12):
    g = torch.rand(6)
    dist.all_reduce(g)
    if rng.random() < 0.3:
        histogram(g)
dist.destroy_process_group()
