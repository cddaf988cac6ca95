# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the metrics are reduced in the sorted order of their names, although the ranks met them in different orders
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
        for name in sorted(self.sums):
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
