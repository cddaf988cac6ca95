# ranks: 3
# kind: mismatch|deadlock
# faulty: any
# lines: 18,28,34,52,53
# profile: gloo
# what: the evaluation with its all_reduce is decorated rank_zero_only, so the other ranks reach the end of the script without calling it
import functools
import os

import torch
import torch.distributed as dist
from torch import nn


def rank_zero_only(fn):
    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if int(os.environ.get("RANK", 0)) == 0:
            return fn(*args, **kwargs)
        return None
    return wrapped


def show(text):
    print(text, flush=True)


@rank_zero_only
def evaluate(net, data):
    net.eval()
    with torch.no_grad():
        hits = (net(data).argmax(-1) == 0).sum()
    counts = torch.stack([hits, torch.tensor(len(data))])
    dist.all_reduce(counts)
    show(f"accuracy {counts[0].item() / counts[1].item():.3f}")


def train(net, data):
    opt = torch.optim.Adam(net.parameters())
    for x in data.split(8):
        opt.zero_grad()
        net(x).logsumexp(-1).mean().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        opt.step()


dist.init_process_group("gloo")
torch.manual_seed(3)
net, data = nn.Linear(5, 3), torch.randn(32, 5)
train(net, data)
evaluate(net, data)
dist.destroy_process_group()
