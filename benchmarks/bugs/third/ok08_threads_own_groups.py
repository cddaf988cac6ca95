# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: two threads, each with a group of its own created in the main thread
import threading

import torch
import torch.distributed as dist


def loop(group, n, out):
    for i in range(n):
        t = torch.ones(3) * i
        dist.all_reduce(t, group=group)
        out.append(t[0].item())


dist.init_process_group("gloo")
g1 = dist.new_group([0, 1])
g2 = dist.new_group([0, 1])
a, b = [], []
th = threading.Thread(target=loop, args=(g2, 6, b))
th.start()
loop(g1, 6, a)
th.join()
assert a == b
dist.barrier()
dist.destroy_process_group()
