# ranks: 3
# decides: fault
# kind: rank-failed
# lines: 23,37-39
# minimum: 1
# faults: partition
# report: https://github.com/meta-pytorch/torchft/pull/71
# what: every rank that loses the others takes itself for the last one and writes the final
#     checkpoint
from datetime import timedelta

import torch
import torch.distributed as dist


def train():
    for _ in range(3):
        dist.all_reduce(torch.ones(2))


def claim(store, rank):
    """Whether this rank is the one to write the final checkpoint."""
    return True


def main():
    store, rank, world = next(dist.rendezvous("env://"))
    try:
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=5)
        )
        train()
        lost = False
    except RuntimeError:
        lost = True
    try:
        if (lost or rank == 0) and claim(store, rank):
            writers = store.add("writers", 1)
            assert writers == 1, f"rank {rank} is writer number {writers}"
    except dist.DistError:
        print("no store, no final checkpoint")


if __name__ == "__main__":
    main()
