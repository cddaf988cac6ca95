"""The samplers of ranks have other seeds, so their parts overlap."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
data = TensorDataset(torch.arange(12.0).view(12, 1))
sampler = DistributedSampler(data, seed=40 + dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for (x,) in DataLoader(data, batch_size=2, sampler=sampler):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
