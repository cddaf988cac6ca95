# ranks: 2
# kind: deadlock|mismatch
# faulty: 1
# lines: 42
# profile: gloo
# what: the retry decorator re-runs the whole step on rank 1 after a flaky read behind the all_reduce, so rank 1 issues one all_reduce more
import functools

import torch
import torch.distributed as dist


def retry(n):
    def deco(f):
        @functools.wraps(f)
        def inner(*a):
            for k in range(n):
                try:
                    return f(*a)
                except OSError:
                    if k == n - 1:
                        raise
        return inner
    return deco


class Disk:
    fails = 1

    def write(self, rank):
        if rank == 1 and self.fails:
            self.fails -= 1
            raise OSError("stale handle")


disk = Disk()


@retry(3)
def step(rank, i):
    t = torch.tensor([float(i)])
    dist.all_reduce(t)
    if i == 2:
        disk.write(rank)
    return t


dist.init_process_group("gloo")
for i in range(4):
    step(dist.get_rank(), i)
dist.destroy_process_group()
