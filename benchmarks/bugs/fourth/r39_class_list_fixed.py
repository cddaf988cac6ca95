# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the counters of all classes are made in advance in one order, whatever the shard shows first
import collections

import torch
import torch.distributed as dist

CLASSES = ("cat", "dog", "bird")


class PerClassAccuracy:
    def __init__(self):
        self.stats = collections.OrderedDict((c, torch.zeros(2)) for c in CLASSES)

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
assert abs(scores["cat"] - 2 / 3) < 1e-6 and scores["bird"] == 0.5
dist.barrier()
dist.destroy_process_group()
