# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the first new_group is called by its members only but with use_local_synchronization, which needs no other rank
import os

import torch
import torch.distributed as dist


def rank():
    return int(os.environ["RANK"])


class Topology:
    """Trainers 0 and 1 share gradients, the last rank is the evaluator."""

    def __init__(self, world):
        self.trainers = list(range(world - 1))
        self.group = None
        if rank() in self.trainers:
            self.group = dist.new_group(self.trainers, use_local_synchronization=True)
        self.report = dist.new_group([0, world - 1])

    @property
    def training(self):
        return self.group is not None


def train_step(topo, weight):
    grad = torch.randn_like(weight)
    dist.all_reduce(grad, group=topo.group)
    weight -= 0.01 * grad
    return weight.norm()


def evaluate(weight):
    return weight.abs().max()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    topo = Topology(dist.get_world_size())
    weight = torch.ones(6)
    value = train_step(topo, weight) if topo.training else evaluate(weight)
    summary = value.reshape(1).clone()
    if rank() in (0, dist.get_world_size() - 1):
        dist.all_reduce(summary, op=dist.ReduceOp.MAX, group=topo.report)
    print(rank(), round(summary.item(), 4))
    dist.barrier()
    dist.destroy_process_group()
