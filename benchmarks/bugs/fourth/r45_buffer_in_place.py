# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the running mean is changed in place, so that DDP's broadcast before each forward keeps the ranks together
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class RunningNorm(torch.nn.Module):
    def __init__(self, dim, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(dim))

    def forward(self, x):
        if self.training:
            batch = x.detach().mean(0)
            dist.all_reduce(batch)
            batch /= dist.get_world_size()
            self.mean.mul_(self.momentum).add_(batch, alpha=1 - self.momentum)
        return x - self.mean


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RunningNorm(4)
        self.fc = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.fc(self.norm(x))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(Net(), broadcast_buffers=True)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    opt.zero_grad()
    model(torch.full((3, 4), 1.0 + 5 * rank + step)).mean().backward()
    opt.step()
means = [None, None]
dist.all_gather_object(means, model.module.norm.mean.tolist())
assert means[0] == means[1]
dist.barrier()
dist.destroy_process_group()
