# ranks: 3
# kind: crossed-order|mismatch
# faulty: 2
# lines: 25,27,42
# profile: gloo
# what: the metrics are reduced in the order in which a rank met them first, and rank 2 met the classes in another order
from collections import defaultdict

import torch
import torch.distributed as dist

STREAMS = [["cat", "dog", "fox"], ["cat", "dog", "fox"], ["fox", "cat", "dog"]]
WEIGHT = {"cat": 1.0, "dog": 10.0, "fox": 100.0}


class ClassMeter:
    def __init__(self):
        self.sums = defaultdict(lambda: torch.zeros(1))

    def update(self, name, value):
        self.sums[name] += value

    def reduced(self):
        out = {}
        for name in self.sums:
            total = self.sums[name].clone()
            dist.all_reduce(total)
            out[name] = total.item()
        return out


def evaluate(meter, rank):
    for name in STREAMS[rank]:
        meter.update(name, WEIGHT[name])


def main():
    dist.init_process_group(backend="gloo", init_method="env://")
    rank = dist.get_rank()
    meter = ClassMeter()
    evaluate(meter, rank)
    totals = meter.reduced()
    ok = all(totals[n] == 3 * WEIGHT[n] for n in totals)
    print(f"rank {rank}: {totals} ok={ok}")
    dist.destroy_process_group()


main()
