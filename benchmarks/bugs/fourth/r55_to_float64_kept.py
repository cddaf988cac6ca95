# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the double precision tensors are kept and the mean is taken from them
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
        total, count = (t.to(torch.float64) for t in (self.total, self.count))
        for t in (total, count):
            dist.all_reduce(t)
        return (total / count).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    metric = MeanMetric()
    for batch in range(3):
        metric.update(torch.arange(4.0) * (rank + 1) + batch)
    value = metric.compute()
    assert abs(value - 3.25) < 1e-6, value
    dist.barrier()
    dist.destroy_process_group()


main()
