# ranks: 4
# kind: deadlock
# faulty: any
# lines: 21,42
# profile: gloo
# what: row-parallel layer: each tensor-parallel group of two has its second member skip the all_reduce because `tp_rank < tp_size - 1` was taken for the pipeline's last stage test
import torch
import torch.distributed as dist


class RowParallel:
    def __init__(self, group, dim):
        self.group = group
        self.tp_rank = dist.get_rank(group)
        self.tp_size = dist.get_world_size(group)
        self.weight = torch.full((dim, dim), 0.1 * (self.tp_rank + 1))

    def forward(self, x, last=False):
        y = x @ self.weight
        if not last or self.tp_rank < self.tp_size - 1:
            dist.all_reduce(y, group=self.group)
        return y


def build_groups(tp_size):
    world = dist.get_world_size()
    mine = None
    for start in range(0, world, tp_size):
        ranks = list(range(start, start + tp_size))
        g = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = g
    return mine


dist.init_process_group("gloo")
tp = build_groups(2)
layers = [RowParallel(tp, 4) for _ in range(3)]
h = torch.ones(2, 4)
for i, layer in enumerate(layers):
    h = layer.forward(h, last=i == len(layers) - 1)
dist.barrier()
dist.destroy_process_group()
