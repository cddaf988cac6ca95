# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: rank-dependent branch in the forward, but find_unused_parameters=True
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x, pick):
        return self.a(x) if pick else self.b(x)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
m = DDP(Two(), find_unused_parameters=True)
for i in range(3):
    m(torch.ones(2, 2), (i + rank) % 2 == 0).sum().backward()
    m.zero_grad()
dist.destroy_process_group()
