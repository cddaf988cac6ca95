"""A subclass of `Process` with a rank, started by the spawn method; results by a pipe."""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist

context = multiprocessing.get_context("spawn")


class Trainer(context.Process):
    def __init__(self, rank, world_size, pipe):
        super().__init__()
        self.rank, self.world_size, self.pipe = rank, world_size, pipe

    def run(self):
        os.environ.update(MASTER_ADDR="127.0.0.1")
        os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29614"
        dist.init_process_group("gloo", rank=self.rank, world_size=self.world_size)
        torch.manual_seed(self.rank)
        drawn = torch.rand(2)
        everyone = [torch.empty(2) for _ in range(self.world_size)]
        dist.all_gather(everyone, drawn + self.rank)
        self.pipe.send((self.rank, [each.tolist() for each in everyone], __name__))
        self.pipe.close()
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(3)
    pipes, trainers = [], []
    for rank in range(3):
        here, there = context.Pipe()
        trainers.append(Trainer(rank, 3, there))
        pipes.append(here)
    for trainer in trainers:
        trainer.start()
    for pipe in pipes:
        print(pipe.recv())
    for trainer in trainers:
        trainer.join(30)
    print([trainer.exitcode for trainer in trainers], trainers[0].is_alive())
