# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: random branch with the same seed on all ranks, plus a per-rank generator used for data only
import random

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
shared, own = random.Random(7), random.Random(rank)
for step in range(10):
    g = torch.full((2,), own.random())
    if shared.random() < 0.4:
        out = [torch.empty(2) for _ in range(3)]
        dist.all_gather(out, g)
    else:
        dist.all_reduce(g)
dist.destroy_process_group()
