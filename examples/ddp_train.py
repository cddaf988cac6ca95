"""Data-parallel training, as one would write it for torchrun.

    torchrun --nproc-per-node 4 examples/ddp_train.py
    phalanx run -n 4 examples/ddp_train.py

Four ranks fit a small network to a function; each sees its own quarter of the data.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(samples, 2, generator=generator) * 4 - 2
    y = torch.sin(x[:, :1]) * torch.cos(x[:, 1:])
    return TensorDataset(x, y)


def train(epochs: int, lr: float) -> float:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    data = make_data(1024)
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    mean = torch.zeros(())
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        mean = total / len(loader)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        print(f"epoch {epoch + 1} loss {mean.item():.4f}")
    return mean.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.01)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} is ready")
    train(options.epochs, options.lr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
