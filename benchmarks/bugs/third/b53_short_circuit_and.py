# ranks: 3
# kind: mismatch|deadlock
# faulty: 1
# lines: 13,25
# profile: gloo
# what: `finite(g) and all_agree(...)` short-circuits on rank 1 in step 2, so it skips the flag all_reduce (int) and enters the gradient all_reduce (float) instead
import torch
import torch.distributed as dist


def all_agree(ok):
    t = torch.tensor([int(ok)])
    dist.all_reduce(t, op=dist.ReduceOp.MIN)
    return bool(t.item())


def finite(g):
    return bool(torch.isfinite(g).all())


def step(g):
    good = finite(g) and all_agree(True)
    if not good:
        g.zero_()
    dist.all_reduce(g)
    return g


dist.init_process_group("gloo")
rank = dist.get_rank()
for i in range(4):
    g = torch.ones(3)
    if rank == 1 and i == 2:
        g[0] = float("nan")
    step(g)
dist.destroy_process_group()
