# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the progress of all ranks is read behind a barrier and in front of another one
import torch
import torch.distributed as dist


class Progress:
    def __init__(self, rank):
        self.rank = rank
        self.store = dist.PrefixStore("progress", dist.distributed_c10d._get_default_store())

    def report(self, step):
        self.store.set(f"rank{self.rank}", str(step))

    def of(self, rank):
        return int(self.store.get(f"rank{rank}"))


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
progress = Progress(rank)
w = torch.zeros(2)
for epoch in range(2):
    for step in range(5):
        w += step * (rank + 1)
        progress.report(epoch * 5 + step)
    dist.barrier()
    if rank == 0:
        resume = min(progress.of(r) for r in range(world))
        assert resume == epoch * 5 + 4
    dist.barrier()
dist.destroy_process_group()
