# ranks: 2
# kind: lost-result
# faulty: any
# lines: 23,24
# profile: gloo
# what: the counters are reduced in double precision, but t.to(torch.float64) is a new tensor and the mean is taken from the float32 original
import torch
import torch.distributed as dist


class MeanMetric:
    def __init__(self):
        self.total = torch.zeros(())
        self.count = torch.zeros(())

    def update(self, values):
        self.total += values.sum()
        self.count += values.numel()

    def compute(self):
        for t in (self.total, self.count):
            # float32 sums get inaccurate over many ranks
            dist.all_reduce(t.to(torch.float64))
        return (self.total / self.count).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    metric = MeanMetric()
    for batch in range(3):
        metric.update(torch.arange(4.0) * (rank + 1) + batch)
    value = metric.compute()
    print(f"rank {rank}: val/loss {value:.4f}")
    dist.barrier()
    dist.destroy_process_group()


main()
