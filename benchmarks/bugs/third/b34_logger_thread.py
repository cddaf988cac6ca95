# ranks: 2
# kind: thread-race
# faulty: any
# lines: 16,24
# profile: gloo
# what: a metrics thread all_reduces on the default group while the main thread trains on the same group; nothing orders the two
import threading

import torch
import torch.distributed as dist


def log_loop(n):
    for i in range(n):
        t = torch.tensor([float(i)])
        dist.all_reduce(t)


dist.init_process_group("gloo")
th = threading.Thread(target=log_loop, args=(5,))
th.start()
for step in range(5):
    g = torch.ones(1)
    dist.all_reduce(g)
th.join()
dist.barrier()
dist.destroy_process_group()
