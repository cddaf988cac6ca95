# ranks: 2
# kind: message-race
# faulty: any
# lines: 22,25,28,33,41
# profile: gloo
# what: rank 0 replaces the key of the learning rate each round and rank 1 reads it unordered with that, so it may read an old or a later value
import random
import time

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store


class Schedule:
    """The controller publishes a learning rate, the workers pick it up."""

    def __init__(self):
        self.store = dist.PrefixStore("schedule", _get_default_store())

    def key(self, step):
        return "lr"

    def publish(self, step, lr):
        self.store.set(self.key(step), repr(lr))

    def current(self, step):
        return float(self.store.get(self.key(step)))


def controller(schedule, steps):
    for step in range(steps):
        schedule.publish(step, 0.1 / (step + 1))
        time.sleep(random.uniform(0, 0.02))


def worker(schedule, steps):
    weight = torch.ones(3)
    used = []
    for step in range(steps):
        lr = schedule.current(step)
        weight -= lr * weight
        used.append(round(lr, 4))
        time.sleep(random.uniform(0, 0.02))
    print("learning rates", used, "weight", weight[0].item())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    schedule = Schedule()
    role = controller if dist.get_rank() == 0 else worker
    role(schedule, steps=5)
    dist.barrier()
    dist.destroy_process_group()
