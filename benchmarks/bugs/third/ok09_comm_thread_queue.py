# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: all collectives of the group are issued by one comm thread fed through a queue in program order; main only touches the group after join
import queue
import threading

import torch
import torch.distributed as dist


class CommThread(threading.Thread):
    def __init__(self):
        super().__init__()
        self.q = queue.Queue()

    def run(self):
        while True:
            item = self.q.get()
            if item is None:
                return
            t, done = item
            dist.all_reduce(t)
            done.set()

    def submit(self, t):
        ev = threading.Event()
        self.q.put((t, ev))
        return ev


dist.init_process_group("gloo")
c = CommThread()
c.start()
ts = [torch.full((n,), 1.0) for n in (2, 5, 3)]
evs = [c.submit(t) for t in ts]
for e in evs:
    e.wait()
c.q.put(None)
c.join()
assert ts[1][0] == 3
dist.barrier()
dist.destroy_process_group()
