# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the spike flag is agreed over the ranks, so all replicas skip the optimizer step together
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SpikeGuard:
    def __init__(self, factor=5.0):
        self.factor, self.ema = factor, None

    def __call__(self, loss):
        value = loss.item()
        spiked = self.ema is not None and value > self.factor * self.ema
        if not spiked:
            self.ema = value if self.ema is None else 0.9 * self.ema + 0.1 * value
        flag = torch.tensor([float(spiked)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        spiked = flag.item() > 0
        return spiked


def batches(rank, n=6):
    gen = torch.Generator().manual_seed(40 + rank)
    for i in range(n):
        x = torch.randn(16, 4, generator=gen)
        yield x * 50 if (rank, i) == (1, 3) else x


def train(model, rank):
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = SpikeGuard()
    for i, x in enumerate(batches(rank)):
        loss = (model(x) - 1).abs().mean()
        opt.zero_grad()
        loss.backward()
        if guard(loss):
            print(f"rank {rank}: spike at {i}, step skipped")
            continue
        opt.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DDP(nn.Linear(4, 2))
train(ddp, dist.get_rank())
w = ddp.module.weight.detach().sum().reshape(1)
ws = [torch.empty(1) for _ in range(dist.get_world_size())]
dist.all_gather(ws, w)
print([round(v.item(), 6) for v in ws])
dist.destroy_process_group()
