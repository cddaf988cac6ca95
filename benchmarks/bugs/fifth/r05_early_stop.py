# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: early stopping looks at the validation loss averaged over the ranks, so all leave the loop in the same epoch
from dataclasses import dataclass

import torch
import torch.distributed as dist

VAL = [[0.9, 0.8, 0.81, 0.83, 0.84, 0.9], [0.9, 0.8, 0.7, 0.6, 0.61, 0.62], [0.9, 0.8, 0.7, 0.65, 0.66, 0.67]]


@dataclass
class EarlyStopping:
    patience: int = 2
    best: float = float("inf")
    bad: int = 0

    def update(self, value):
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def average_gradients(weight):
    dist.all_reduce(weight.grad)
    weight.grad.div_(dist.get_world_size())


def validate(rank, epoch):
    loss = torch.tensor([VAL[rank][epoch]])
    dist.all_reduce(loss)
    loss /= dist.get_world_size()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weight = torch.ones(5, 3, requires_grad=True)
    stopper = EarlyStopping()
    for epoch in range(6):
        weight.grad = None
        (weight * (rank + 1)).sum().backward()
        average_gradients(weight)
        weight.data.sub_(0.1 * weight.grad)
        if stopper.update(validate(rank, epoch)):
            print(f"rank {rank} stops after epoch {epoch}")
            break
    best = torch.tensor([stopper.best])
    dist.broadcast(best, src=0)
    dist.destroy_process_group()


main()
