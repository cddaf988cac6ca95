# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the masked copy is reduced and written back through the mask; the slice of the second call is a view and needs no copy
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
        picked = self.tokens[self.active]
        dist.all_reduce(picked)
        self.tokens[self.active] = picked

    def sync_head(self, n):
        dist.all_reduce(self.tokens[:n])


dist.init_process_group("gloo")
rank = dist.get_rank()
lb = LoadBalancer(6)
lb.active[2] = False
lb.record(rank)
lb.sync()
assert lb.tokens.tolist() == [0.0, 3.0, 2.0 * (rank + 1), 9.0, 12.0, 15.0]
lb.sync_head(2)
assert lb.tokens[1].item() == 6.0
dist.barrier()
dist.destroy_process_group()
