# ranks: 2
# kind: invalid-call
# faulty: 1
# lines: 19
# profile: gloo
# what: the input of all_gather_into_tensor is always the first slot of the output, which is the own one on rank 0 only
import torch
import torch.distributed as dist


class FlatParam:
    def __init__(self, numel, rank, world):
        self.full = torch.zeros(numel)
        n = numel // world
        self.shard = self.full[:n]
        self.shard.fill_(rank + 1.0)

    def unshard(self):
        dist.all_gather_into_tensor(self.full, self.shard)
        return self.full


dist.init_process_group("gloo")
flat = FlatParam(8, dist.get_rank(), dist.get_world_size())
for step in range(2):
    full = flat.unshard()
    print(step, full.tolist())
dist.barrier()
dist.destroy_process_group()
