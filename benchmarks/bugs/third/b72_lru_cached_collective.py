# ranks: 2
# kind: mismatch|deadlock
# faulty: any
# lines: 16,25
# profile: gloo
# what: global_max_len is cached by its argument; on rank 1 the length repeats so the cache hits and the collective is skipped, and its all_gather meets rank 0's all_reduce
import functools

import torch
import torch.distributed as dist


@functools.lru_cache(maxsize=None)
def global_max_len(n):
    t = torch.tensor([n])
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return int(t)


def pad_and_gather(x):
    m = global_max_len(len(x))
    y = torch.zeros(m)
    y[: len(x)] = x
    out = [torch.empty(m) for _ in range(dist.get_world_size())]
    dist.all_gather(out, y)
    return out


dist.init_process_group("gloo")
LENS = {0: [3, 5, 4], 1: [2, 4, 4]}
for n in LENS[dist.get_rank()]:
    pad_and_gather(torch.ones(n))
dist.destroy_process_group()
