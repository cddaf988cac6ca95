"""`start_processes` by fork, without waiting at once; a closure as the worker; two groups."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main():
    results = mp.get_context("fork").SimpleQueue()
    offset = 5.0

    def worker(index, size):
        os.environ.update(MASTER_ADDR="127.0.0.1")
        os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29618"
        dist.init_process_group("gloo", rank=index, world_size=size)
        pair = dist.new_group([0, 1])
        value = torch.tensor([offset + index])
        if index < 2:
            dist.all_reduce(value, group=pair)
        dist.barrier()
        results.put((index, value.item(), torch.rand(1).item()))
        dist.destroy_process_group()

    torch.manual_seed(11)
    context = mp.start_processes(worker, args=(3,), nprocs=3, join=False, start_method="fork")
    while not context.join():
        pass
    for index, value, drawn in sorted(results.get() for _ in range(3)):
        print(index, value, round(drawn, 6))


if __name__ == "__main__":
    main()
