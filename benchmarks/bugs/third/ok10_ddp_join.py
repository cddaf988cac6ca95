# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: uneven DDP inputs handled by model.join()
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(2, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
with model.join():
    for i in range(3 + rank):
        opt.zero_grad()
        model(torch.ones(2, 2) * i).sum().backward()
        opt.step()
dist.barrier()
dist.destroy_process_group()
