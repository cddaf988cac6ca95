"""`Process` objects that a loop starts, by fork: globals set under the guard, a model and a
list that every child has for itself, results by a queue."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

scale = 1
seen = []


def run(rank, size, model, queue, received):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29612"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    seen.append(rank)
    with torch.no_grad():
        model.weight += rank * scale
    total = model.weight.detach().clone()
    dist.all_reduce(total)
    queue.put((rank, total, list(seen), mp.current_process().name))
    dist.destroy_process_group()
    received.wait()  # a tensor in a queue needs its sender until it is received


if __name__ == "__main__":
    torch.manual_seed(7)
    scale = 10
    model = torch.nn.Linear(2, 2)
    queue, received = mp.Queue(), mp.Event()
    processes = []
    for rank in range(4):
        args = (rank, 4, model, queue, received)
        process = mp.Process(target=run, args=args, name=f"child-{rank}")
        process.start()
        processes.append(process)
    results = sorted((queue.get() for _ in processes), key=lambda each: each[0])
    received.set()
    for rank, total, seen_there, name in results:
        print(rank, [round(x, 3) for x in total.flatten().tolist()], seen_there, name)
    for process in processes:
        process.join()
    print("exit codes", [process.exitcode for process in processes], "seen here", seen)
    print("model here", round(model.weight.sum().item(), 4))
