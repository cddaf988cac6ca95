# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: both ranks give their parameters to the optimizer in reversed order, so the state of rank 0 fits on rank 1
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Towers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4, bias=False)
        self.b = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.a(x).sum() + 3 * self.b(x).sum()


def build_optimizer(model):
    named = sorted(model.named_parameters(), reverse=True)
    return torch.optim.SGD([p for _, p in named], lr=0.05, momentum=0.9)


def train(model, opt, rank, steps):
    for step in range(steps):
        opt.zero_grad()
        model(torch.full((1, 4), 0.1 * (rank + step + 1))).backward()
        opt.step()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(Towers())
opt = build_optimizer(model)
train(model, opt, rank, 2)
box = [opt.state_dict() if rank == 0 else None]
dist.broadcast_object_list(box, src=0)
opt.load_state_dict(box[0])
train(model, opt, rank, 3)
sums = [None, None]
dist.all_gather_object(sums, model.module.a.weight.sum().item())
assert sums[0] == sums[1]
dist.barrier()
dist.destroy_process_group()
