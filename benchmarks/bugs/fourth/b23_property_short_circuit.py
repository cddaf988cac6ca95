# ranks: 3
# kind: mismatch|deadlock
# faulty: 2
# lines: 31,26,36
# profile: gloo
# what: `and` short-circuits: rank 2's local average is too high in the last epoch, so it never touches meter.global_avg, a property that all_reduces; it meets the others with the broadcast of the learning rate
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
    return meter.avg < 10.0 and meter.global_avg > threshold


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
dist.barrier()
dist.destroy_process_group()
