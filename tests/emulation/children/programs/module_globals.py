"""A module's globals: set before the processes are started, and changed in each of them. By
fork they have what the parent had set, by spawn the module is new."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _settings
from _settings import seen


class Counter:
    made = 0

    def __init__(self):
        Counter.made += 1

    def count(self):
        return Counter.made


def work(rank, size, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29617"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    seen.append(rank)
    _settings.steps += rank
    counters = [Counter() for _ in range(rank + 1)]
    total = torch.tensor(float(_settings.steps))
    dist.all_reduce(total)
    queue.put((rank, total.item(), _settings.steps, list(_settings.seen), counters[0].count()))
    dist.destroy_process_group()


def main(method):
    context = mp.get_context(method)
    queue = context.Queue()
    children = [context.Process(target=work, args=(rank, 3, queue)) for rank in range(3)]
    for child in children:
        child.start()
    print(method, sorted(queue.get() for _ in children))
    for child in children:
        child.join()
    print([child.exitcode for child in children], _settings.steps, seen, Counter.made)


if __name__ == "__main__":
    _settings.steps = 100
    Counter()
    main("fork")
    main("spawn")
