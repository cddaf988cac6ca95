# ranks: 2
# kind: message-race
# faulty: any
# lines: 17,20
# profile: gloo
# what: rank 1 writes its progress to one key after every step and rank 0 reads it after its own last step to choose the step to resume from
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
for step in range(5):
    w += step * (rank + 1)
    progress.report(step)
if rank == 0:
    resume = min(progress.of(r) for r in range(world))
    print("resume from", resume)
dist.barrier()
dist.destroy_process_group()
