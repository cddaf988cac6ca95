# ranks: 3
# kind: mismatch
# faulty: 2
# lines: 21,31
# profile: gloo
# what: rank 2 builds its attention statistics with batch_first=False, so a (2, 6) tensor is summed with the (6, 2) ones of the others
import torch
import torch.distributed as dist


class AttnStats:
    def __init__(self, batch_first):
        self.batch_first = batch_first

    def compute(self, scores):
        # scores: batch x time
        return scores.clone() if self.batch_first else scores.t().clone(memory_format=torch.contiguous_format)


def sync(stats):
    dist.all_reduce(stats, op=dist.ReduceOp.MAX)
    return stats


CONFIG = {0: {"batch_first": True}, 1: {"batch_first": True}}

dist.init_process_group("gloo")
rank = dist.get_rank()
cfg = CONFIG.get(rank, {"batch_first": False})
scores = torch.arange(12.0).view(6, 2) * (rank + 1)
stats = sync(AttnStats(**cfg).compute(scores))
print(rank, stats.shape, stats.max().item())
dist.barrier()
dist.destroy_process_group()
