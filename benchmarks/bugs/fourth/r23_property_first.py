# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the global average comes first in the condition, so every rank reduces and only the local test is short-circuited
import torch
import torch.distributed as dist


class AverageMeter:
    def __init__(self):
        self.sum, self.n = 0.0, 0

    def add(self, v):
        self.sum += v
        self.n += 1

    @property
    def avg(self):
        return self.sum / max(self.n, 1)

    @property
    def global_avg(self):
        t = torch.tensor([self.sum, float(self.n)])
        dist.all_reduce(t)
        return (t[0] / t[1]).item()


def should_decay(meter, threshold):
    return meter.global_avg > threshold and meter.avg < 10.0


def sync_lr(lr):
    t = torch.tensor([lr, 0.0])
    dist.broadcast(t, src=0)
    return t[0].item()


dist.init_process_group("gloo")
rank = dist.get_rank()
lr = 0.1
for epoch in range(3):
    meter = AverageMeter()
    for i in range(4):
        meter.add(1.0 + rank * epoch * 3.0 + i)
    if should_decay(meter, threshold=3.0):
        lr *= 0.5
    lr = sync_lr(lr)
assert abs(lr - 0.025) < 1e-6, lr
dist.barrier()
dist.destroy_process_group()
