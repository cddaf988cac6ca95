# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the input of all_gather_into_tensor is the own slot of the output, the in-place form that FSDP uses
import torch
import torch.distributed as dist


class FlatParam:
    def __init__(self, numel, rank, world):
        self.full = torch.zeros(numel)
        n = numel // world
        self.shard = self.full[rank * n:(rank + 1) * n]
        self.shard.fill_(rank + 1.0)

    def unshard(self):
        dist.all_gather_into_tensor(self.full, self.shard)
        return self.full


dist.init_process_group("gloo")
flat = FlatParam(8, dist.get_rank(), dist.get_world_size())
for step in range(2):
    full = flat.unshard()
    assert full.tolist() == [1.0] * 4 + [2.0] * 4
dist.barrier()
dist.destroy_process_group()
