# ranks: 2
# kind: in-flight-buffer
# faulty: any
# lines: 13,18
# profile: gloo
# what: gradients are clipped in place between all_reduce(async_op=True) and the waits
import torch
import torch.nn as nn
import torch.distributed as dist


def launch(model):
    return [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]


def clip(model, limit):
    for p in model.parameters():
        p.grad.clamp_(-limit, limit)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    opt.zero_grad()
    x = torch.randn(16, 4) + dist.get_rank()
    model(x).pow(2).mean().backward()
    works = launch(model)
    clip(model, 0.5)
    for w in works:
        w.wait()
    opt.step()
dist.destroy_process_group()
