# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: gradient accumulation over four micro batches, synchronised by both ranks in the last one
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
    for step in range(3):
        opt.zero_grad()
        for micro in range(ACCUM):
            sync = (micro + 1) % ACCUM == 0
            micro_step(model, torch.full((2, 6), 0.1 * (rank + micro + 1)), sync)
        opt.step()
    w = model.module.weight.detach()
    both = [torch.empty_like(w) for _ in range(2)]
    dist.all_gather(both, w)
    assert torch.equal(both[0], both[1])
    dist.barrier()
    dist.destroy_process_group()


main()
