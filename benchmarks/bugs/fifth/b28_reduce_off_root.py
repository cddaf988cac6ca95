# ranks: 3
# kind: lost-result|replica-drift
# faulty: 1,2
# lines: 20,21,37,38
# profile: gloo
# what: the validation loss is reduced to rank 0 but the scheduler of every rank reads it, so ranks 1 and 2 step on a value that is not the sum
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

RANK, WORLD = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE"))
VAL_LOSS = [[3.0, 2.0, 1.0, 0.5], [0.9, 0.91, 0.92, 0.93], [0.9, 0.95, 1.0, 1.05]]


def mean_to_main(value):
    t = torch.tensor(value, dtype=torch.float64)
    dist.reduce(t, dst=0, op=dist.ReduceOp.SUM)
    return t / WORLD


class Fit:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(3, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.sched = ReduceLROnPlateau(self.opt, patience=0)

    def epoch(self, i):
        self.net(torch.ones(2, 3)).sum().backward()
        for p in self.net.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        self.opt.step()
        self.opt.zero_grad()
        val = mean_to_main(VAL_LOSS[RANK][i])
        self.sched.step(val.item())
        return self.opt.param_groups[0]["lr"]


dist.init_process_group("gloo")
fit = Fit()
rates = [fit.epoch(i) for i in range(4)]
print(RANK, "learning rates", [f"{r:.0e}" for r in rates])
dist.destroy_process_group()
