# ranks: 3
# kind: mismatch|deadlock
# faulty: 0
# lines: 48,21,44
# profile: gloo
# what: the MetricLogger is synchronised (barrier and all_reduce two levels down) under is_main_process only, while ranks 1 and 2 go on with the gradients of the next epoch
import torch
import torch.distributed as dist


class SmoothedValue:
    def __init__(self):
        self.count, self.total = 0, 0.0

    def update(self, v):
        self.count += 1
        self.total += v

    def synchronize_between_processes(self):
        t = torch.tensor([self.count, self.total], dtype=torch.float64)
        dist.all_reduce(t)
        self.count, self.total = int(t[0]), t[1].item()


class MetricLogger:
    def __init__(self):
        self.meters = {"loss": SmoothedValue()}

    def update(self, **kw):
        for k, v in kw.items():
            self.meters[k].update(v)

    def synchronize_between_processes(self):
        for meter in self.meters.values():
            meter.synchronize_between_processes()


dist.init_process_group("gloo")
w = torch.zeros(4)
for epoch in range(2):
    logger = MetricLogger()
    for i in range(3):
        g = torch.full((4,), float(i + dist.get_rank()))
        dist.all_reduce(g)
        w -= g * 0.1
        logger.update(loss=w.sum().item())
    if dist.get_rank() == 0:
        logger.synchronize_between_processes()
        print("Averaged stats:", logger.meters["loss"].total)
dist.barrier()
dist.destroy_process_group()
