"""A worker fails: `spawn` raises what it raised, and the parent catches it."""

import os
import sys

import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29613"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    if rank == 1:
        raise ValueError("rank 1 has had enough")
    dist.barrier()


if __name__ == "__main__":
    try:
        mp.spawn(worker, args=(3,), nprocs=3)
    except mp.ProcessRaisedException as error:
        text = str(error)
        print("caught", error.error_index, "ValueError: rank 1 has had enough" in text)
        print("names the line:", "in worker" in text)
    context = mp.spawn(print, args=("from a child",), nprocs=2, join=False)
    print(len(context.pids()), len(set(context.pids())))
    while not context.join(timeout=5):
        pass
    print([process.exitcode for process in context.processes])
