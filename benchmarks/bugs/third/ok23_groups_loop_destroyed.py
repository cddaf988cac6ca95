# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: a temporary group per phase, destroyed at the end of every phase
import contextlib

import torch
import torch.distributed as dist


@contextlib.contextmanager
def temp_group(ranks):
    g = dist.new_group(ranks)
    try:
        yield g
    finally:
        dist.destroy_process_group(g)


dist.init_process_group("gloo")
for phase in range(8):
    with temp_group([0, 1]) as g:
        t = torch.ones(phase + 1)
        dist.all_reduce(t, group=g)
dist.barrier()
dist.destroy_process_group()
