# ranks: 2
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: every evaluation makes a new group for its reduction and destroys it when done
import torch
import torch.distributed as dist
from torch import nn


class GroupScope:
    """A process group for the time of a block."""

    def __init__(self, ranks):
        self.ranks = ranks

    def __enter__(self):
        self.group = dist.new_group(self.ranks)
        return self.group

    def __exit__(self, *exc):
        dist.destroy_process_group(self.group)


@torch.no_grad()
def evaluate(net, data, ranks):
    with GroupScope(ranks) as group:
        total = net(data).abs().sum().reshape(1)
        dist.all_reduce(total, group=group)
        dist.barrier(group=group)
    return total.item()


def train(net, data, steps):
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    ranks = list(range(dist.get_world_size()))
    history = []
    for step in range(steps):
        opt.zero_grad()
        net(data).square().mean().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        history.append(evaluate(net, data, ranks))
    return history


dist.init_process_group("gloo")
torch.manual_seed(0)
history = train(nn.Linear(4, 2), torch.randn(8, 4), steps=12)
groups = len(dist.distributed_c10d._world.pg_map)
print(f"{groups} groups alive, last value {history[-1]:.4f}")
dist.destroy_process_group()
