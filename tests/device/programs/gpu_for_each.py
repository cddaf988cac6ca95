"""A script as torchrun runs it: a GPU for each rank, by its local rank, and DDP on NCCL."""

import os

import torch
import torch.distributed as dist
from torch import nn

local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
rank, size = dist.get_rank(), dist.get_world_size()
assert torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
model = nn.parallel.DistributedDataParallel(net, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
mine = data[rank::size].to(f"cuda:{local_rank}", non_blocking=True)
for _ in range(5):
    optimizer.zero_grad()
    loss = model(mine).square().mean()
    loss.backward()
    optimizer.step()

total = torch.ones(1, device=f"cuda:{local_rank}") * rank
dist.all_reduce(total)
weights = sum(p.detach().double().abs().sum().item() for p in net.parameters())
dist.barrier(device_ids=[local_rank])
print(f"sum {total.item():g}, weights {weights:.4f}")
dist.destroy_process_group()
