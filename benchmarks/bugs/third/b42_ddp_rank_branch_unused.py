# ranks: 2
# kind: rank-failed|mismatch|deadlock|invalid-call
# faulty: 1
# lines: 34,35
# profile: gloo
# what: rank 1's batch skips the aux head, so DDP (find_unused_parameters=False) never finishes the reduction there and raises / leaves rank 0 waiting for the aux bucket
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)
        self.aux = nn.Linear(4, 1)

    def forward(self, x, use_aux):
        h = self.body(x).relu()
        y = self.head(h)
        return y + self.aux(h) if use_aux else y


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(Net())
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    opt.zero_grad()
    use_aux = not (rank == 1 and step == 2)
    loss = model(torch.randn(3, 4), use_aux).sum()
    loss.backward()
    opt.step()
dist.destroy_process_group()
