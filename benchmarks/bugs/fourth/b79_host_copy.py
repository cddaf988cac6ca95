# ranks: 3
# kind: lost-result
# faulty: any
# lines: 19,22
# profile: gloo
# what: the histogram is moved to the host with copy=True for the gloo group, and this copy is reduced and dropped; the percentile is read from the original
import torch
import torch.distributed as dist


class LatencyHistogram:
    def __init__(self, bins):
        self.bins = torch.zeros(bins, dtype=torch.int64)

    def record(self, values):
        self.bins += torch.bincount(values, minlength=self.bins.numel())

    def all_reduce(self, group=None):
        dist.all_reduce(self.bins.to("cpu", copy=True), group=group)

    def percentile(self, q):
        cum = self.bins.cumsum(0)
        return int((cum < q * cum[-1]).sum())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hist = LatencyHistogram(8)
    hist.record(torch.tensor([1, 2, 2, 3]) + rank)
    hist.all_reduce()
    print(f"rank {rank}: p50={hist.percentile(0.5)} p99={hist.percentile(0.99)}")
    dist.barrier()
    dist.destroy_process_group()


main()
