"""Ranks 1 to 3 are processes, rank 0 is the program itself."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, size):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29615"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    value = torch.full((2,), float(rank + 1))
    dist.all_reduce(value, op=dist.ReduceOp.PRODUCT)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    dist.destroy_process_group()
    return value.tolist(), objects


if __name__ == "__main__":
    mp.set_start_method("spawn")
    children = [mp.Process(target=train, args=(rank, 4)) for rank in range(1, 4)]
    for child in children:
        child.start()
    print(train(0, 4))
    for child in children:
        child.join()
    print([child.exitcode for child in children])
