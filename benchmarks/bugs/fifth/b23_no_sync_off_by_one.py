# ranks: 2
# kind: replica-drift
# faulty: any
# lines: 25,26,31,32,46
# profile: gloo
# what: gradients are synchronised in the first micro-step of a window but the optimizer steps after the last one, which ran under no_sync
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUM = 4


class Accumulator:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.micro = 0

    @contextlib.contextmanager
    def accumulate(self):
        sync = self.micro % ACCUM == 0
        with contextlib.nullcontext() if sync else self.model.no_sync():
            yield
        self.micro += 1

    def maybe_step(self):
        if self.micro % ACCUM == 0:
            self.opt.step()
            self.opt.zero_grad()


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(5)
    model = DDP(nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 1)))
    acc = Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gen = torch.Generator().manual_seed(100 + rank)
    for _ in range(3 * ACCUM):
        with acc.accumulate():
            loss = model(torch.randn(4, 6, generator=gen)).square().mean() / ACCUM
            loss.backward()
        acc.maybe_step()
    total = torch.cat([p.detach().flatten() for p in model.parameters()]).sum().reshape(1)
    sums = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, total)
    print(rank, "parameter sums", [round(s.item(), 6) for s in sums])
    dist.destroy_process_group()


main()
