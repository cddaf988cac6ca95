# ranks: 2
# kind: in-flight-buffer|unwaited-work
# faulty: any
# lines: 20,24
# profile: gloo
# what: the global token count is read with .item() although the async all_reduce that fills it was never waited for
import torch
import torch.distributed as dist


class Meter:
    def __init__(self):
        self.n = torch.zeros(1, dtype=torch.int64)
        self.work = None

    def add(self, k):
        self.n += k

    def sync(self):
        self.work = dist.all_reduce(self.n, async_op=True)

    @property
    def value(self):
        return self.n.item()


dist.init_process_group("gloo")
m = Meter()
for b in range(3):
    m.add(10 + dist.get_rank())
m.sync()
tokens = m.value
lr = 1.0 / tokens
dist.barrier()
dist.destroy_process_group()
