# ranks: 2
# kind: mismatch|deadlock
# faulty: 0
# lines: 15,30
# profile: gloo
# what: the sanity forward on rank 0 goes through the DDP wrapper, which broadcasts the BatchNorm buffers; rank 1 is not there (it is in barrier)
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def sanity_check(model):
    with torch.no_grad():
        out = model(torch.randn(8, 4))
    assert torch.isfinite(out).all()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(2):
    opt.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    opt.step()
if rank == 0:
    sanity_check(model)
dist.barrier()
dist.destroy_process_group()
