# ranks: 2
# kind: crossed-order
# faulty: any
# lines: 23,38
# profile: gloo
# what: per-class counters live in a dict in order of first appearance; the ranks see the classes in another order and reduce cat with dog
import collections

import torch
import torch.distributed as dist


class PerClassAccuracy:
    def __init__(self):
        self.stats = collections.defaultdict(lambda: torch.zeros(2))

    def update(self, label, correct):
        self.stats[label] += torch.tensor([float(correct), 1.0])

    def compute(self):
        result = {}
        for label, stat in self.stats.items():
            dist.all_reduce(stat)
            result[label] = (stat[0] / stat[1]).item()
        return result


SHARDS = {
    0: [("cat", 1), ("dog", 0), ("cat", 1), ("bird", 1)],
    1: [("dog", 1), ("cat", 0), ("bird", 0), ("dog", 1)],
}

dist.init_process_group("gloo")
rank = dist.get_rank()
metric = PerClassAccuracy()
for label, ok in SHARDS[rank]:
    metric.update(label, ok)
scores = metric.compute()
print(rank, scores)
dist.barrier()
dist.destroy_process_group()
