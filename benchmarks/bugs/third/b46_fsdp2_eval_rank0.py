# ranks: 2
# kind: deadlock|mismatch
# faulty: 0
# lines: 17,36
# profile: gloo
# what: the validation forward of a fully_shard model is run on rank 0 only; its all_gathers have no partner (rank 1 is in barrier)
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def validate(model):
    model.eval()
    with torch.no_grad():
        return model(torch.ones(2, 8)).mean().item()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    opt.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    opt.step()
if rank == 0:
    print("val", validate(model))
dist.barrier()
dist.destroy_process_group()
