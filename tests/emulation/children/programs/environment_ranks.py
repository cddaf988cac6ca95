"""Ranks that are told by the environment alone, and data loaders with workers in them."""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def train():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    data = TensorDataset(torch.arange(8.0) * (dist.get_rank() + 1))
    loader = DataLoader(data, batch_size=2, shuffle=True, num_workers=1)
    total = torch.zeros(())
    order = []
    for (batch,) in loader:
        order += batch.tolist()
        total += batch.sum()
        dist.all_reduce(batch)
    dist.all_reduce(total)
    print(dist.get_rank(), total.item(), order, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", WORLD_SIZE="2")
    os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29619"
    children = []
    for rank in range(2):
        os.environ["RANK"] = str(rank)
        child = multiprocessing.Process(target=train)
        child.start()
        children.append(child)
    for child in children:
        child.join()
    print([child.exitcode for child in children])
