# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the histogram is on the host already, so .cpu() hands out the tensor itself and the all_reduce is in place
import torch
import torch.distributed as dist


class LatencyHistogram:
    def __init__(self, bins):
        self.bins = torch.zeros(bins, dtype=torch.int64)

    def record(self, values):
        self.bins += torch.bincount(values, minlength=self.bins.numel())

    def all_reduce(self, group=None):
        dist.all_reduce(self.bins.cpu(), group=group)

    def percentile(self, q):
        cum = self.bins.cumsum(0)
        return int((cum < q * cum[-1]).sum())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hist = LatencyHistogram(8)
    hist.record(torch.tensor([1, 2, 2, 3]) + rank)
    hist.all_reduce()
    assert hist.bins.tolist() == [0, 1, 3, 4, 3, 1, 0, 0]
    assert hist.percentile(0.5) == 3
    dist.barrier()
    dist.destroy_process_group()


main()
