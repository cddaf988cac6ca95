"""What parents and children talk by: queues, pipes, events, barriers, locks, values, arrays,
a manager; and a tensor in shared memory."""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, size, tools):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29616"
    tools["go"].wait()
    dist.init_process_group("gloo", rank=rank, world_size=size)
    with tools["lock"]:
        tools["value"].value += rank + 1
        tools["array"][rank] = rank * 1.5
    tools["shared"][rank] = rank + 0.5
    tools["dict"][rank] = f"rank {rank}"
    tools["barrier"].wait()
    total = torch.tensor(tools["value"].value)
    dist.all_reduce(total)
    tools["simple"].put((rank, int(total)))
    tools["done"].release()
    dist.barrier()
    dist.destroy_process_group()


def main(method):
    context = mp.get_context(method)
    with multiprocessing.Manager() as manager:
        tools = {
            "go": context.Event(),
            "lock": context.Lock(),
            "value": context.Value("i", 0),
            "array": context.Array("d", 3),
            "barrier": context.Barrier(4),
            "simple": context.SimpleQueue(),
            "done": context.Semaphore(0),
            "dict": manager.dict(),
            "shared": torch.zeros(3).share_memory_(),
        }
        children = [context.Process(target=work, args=(r, 3, tools)) for r in range(3)]
        for child in children:
            child.start()
        tools["go"].set()
        tools["barrier"].wait()
        for _ in children:
            tools["done"].acquire()
        print(method, sorted(tools["simple"].get() for _ in children))
        for child in children:
            child.join()
        print([child.exitcode for child in children], tools["value"].value)
        print(list(tools["array"]), sorted(tools["dict"].items()), tools["shared"].tolist())


if __name__ == "__main__":
    main("fork")
    main("spawn")
