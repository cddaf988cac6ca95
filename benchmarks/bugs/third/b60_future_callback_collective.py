# ranks: 2
# kind: thread-race
# faulty: any
# lines: 17,29
# profile: gloo
# what: a Future callback (which may run on a backend thread) issues a second all_reduce while the main thread goes on with its own all_reduce in the same group
import threading

import torch
import torch.distributed as dist


def chained(t, u):
    ev = threading.Event()

    def after(fut):
        dist.all_reduce(u)
        ev.set()
        return u

    dist.all_reduce(t, async_op=True).get_future().then(after)
    return ev


dist.init_process_group("gloo")
a, b = torch.ones(1 << 12), torch.ones(4)
ev = chained(a, b)
c = torch.ones(4)
dist.all_reduce(c)
ev.wait()
dist.barrier()
dist.destroy_process_group()
