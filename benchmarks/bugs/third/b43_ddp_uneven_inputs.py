# ranks: 3
# kind: deadlock
# faulty: any
# lines: 26
# profile: gloo
# what: rank 0 gets 4 batches, the others 3; its fourth backward all_reduces gradients with ranks that have finished
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def loader(n_total, rank, ws, bs):
    idx = torch.arange(rank, n_total, ws)
    for chunk in idx.split(bs):
        yield chunk.float().unsqueeze(1)


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = DDP(nn.Linear(1, 1))
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
for x in loader(19, rank, ws, 2):
    opt.zero_grad()
    model(x).pow(2).mean().backward()
    opt.step()
dist.destroy_process_group()
