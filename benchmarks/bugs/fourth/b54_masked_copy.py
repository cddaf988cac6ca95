# ranks: 2
# kind: lost-result
# faulty: any
# lines: 21,24
# profile: gloo
# what: x[mask] with a boolean mask is a copy: the all_reduce sums a temporary and the statistics of the active experts stay local
import torch
import torch.distributed as dist


class LoadBalancer:
    def __init__(self, experts):
        self.tokens = torch.zeros(experts)
        self.active = torch.ones(experts, dtype=torch.bool)

    def record(self, rank):
        self.tokens += torch.arange(self.tokens.numel()) * (rank + 1.0)

    def sync(self):
        # only the experts that are switched on
        dist.all_reduce(self.tokens[self.active])

    def bias(self):
        return self.tokens.mean() - self.tokens


dist.init_process_group("gloo")
rank = dist.get_rank()
lb = LoadBalancer(6)
lb.active[2] = False
for step in range(2):
    lb.record(rank)
    lb.sync()
    print(step, lb.bias().tolist())
dist.barrier()
dist.destroy_process_group()
