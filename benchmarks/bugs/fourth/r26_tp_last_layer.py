# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: row-parallel layer: in the last layer both members of the tensor-parallel group leave out the all_reduce and gather the halves afterwards
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
        if not last:
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
halves = [torch.empty_like(h) for _ in range(2)]
dist.all_gather(halves, h, group=tp)
assert torch.allclose(2 * halves[0], halves[1])
dist.barrier()
dist.destroy_process_group()
