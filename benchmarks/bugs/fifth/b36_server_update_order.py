# ranks: 3
# kind: message-race
# faulty: 0
# lines: 21,26,27
# profile: gloo
# what: the parameter server mixes worker updates into the weights in the order of arrival, and the moving average depends on that order
import os
import random
import time

import torch
import torch.distributed as dist


class Server:
    def __init__(self, size, workers):
        self.weight = torch.zeros(size)
        self.workers = workers

    def mix(self, update):
        self.weight.mul_(0.5).add_(update, alpha=0.5)

    def round(self):
        for _ in range(self.workers):
            update = torch.empty_like(self.weight)
            dist.recv(update)
            self.mix(update)
        for dst in range(1, self.workers + 1):
            dist.send(self.weight, dst)


class Worker:
    def __init__(self, size, rank):
        self.weight, self.rank = torch.zeros(size), rank

    def round(self):
        time.sleep(random.uniform(0, 0.05))
        dist.send(self.weight + self.rank, 0)
        dist.recv(self.weight, 0)


def main(rounds=6):
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), dist.get_world_size()
    node = Worker(4, rank) if rank else Server(4, world - 1)
    for _ in range(rounds):
        node.round()
    print(rank, node.weight.tolist())
    dist.barrier()
    dist.destroy_process_group()


main()
