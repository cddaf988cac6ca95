# ranks: 3
# kind: mismatch|deadlock
# faulty: 2
# lines: 29,35,38,42
# profile: gloo
# what: rank 2 has one batch less than the others and goes to the epoch loss all_reduce while they are in the DDP gradient all_reduce
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


def shard(n_samples=32, batch=4):
    torch.manual_seed(0)
    data = torch.randn(n_samples, 10)
    chunks = data.split(batch)
    return chunks[RANK::WORLD]  # 8 chunks over 3 ranks


def uneven_inputs(model):
    # the loaders are of the same length, Join is only needed for streams
    return Join([model]) if os.environ.get("STREAMING") else contextlib.nullcontext()


def run_epoch(model, opt, batches):
    total = 0.0
    with uneven_inputs(model):
        for x in batches:
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
            total += loss.item()
    summed = torch.tensor([total, float(len(batches))])
    dist.all_reduce(summed)
    return (summed[0] / summed[1]).item()


dist.init_process_group("gloo")
torch.manual_seed(1)
model = DDP(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1)))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
mean = run_epoch(model, opt, shard())
if RANK == 0:
    print(f"mean loss {mean:.4f}")
dist.destroy_process_group()
