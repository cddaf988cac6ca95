# ranks: 2
# kind: replica-drift
# faulty: 1
# lines: 17,36
# profile: gloo
# what: gradient accumulation over four micro batches: rank 1 counts from one and synchronises in the third micro batch, so the gradient of its fourth stays local
import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUM = 4


def micro_step(model, x, sync):
    ctx = contextlib.nullcontext() if sync else model.no_sync()
    with ctx:
        loss = model(x).pow(2).mean() / ACCUM
        loss.backward()
    return loss.detach()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(6, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    start = 1 if rank == 1 else 0  # resumed ranks have one micro batch behind them
    for step in range(3):
        opt.zero_grad()
        for micro in range(ACCUM):
            sync = (micro + 1 + start) % ACCUM == 0
            micro_step(model, torch.full((2, 6), 0.1 * (rank + micro + 1)), sync)
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


main()
