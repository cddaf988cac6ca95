# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: FSDP2 training; every rank takes part in the forward and in full_tensor(), only the print is rank 0's
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
fully_shard(model[0], mesh=mesh)
fully_shard(model[2], mesh=mesh, reshard_after_forward=False)
fully_shard(model, mesh=mesh)
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
for i in range(3):
    opt.zero_grad()
    model(torch.randn(2 + rank, 5)).sum().backward()
    opt.step()
state = {k: v.full_tensor() for k, v in model.state_dict().items()}
if rank == 0:
    print(sorted(state))
dist.barrier()
dist.destroy_process_group()
