# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: rank 2 uses the other layout inside, but all ranks reduce the flattened batch-first tensor
import torch
import torch.distributed as dist


class AttnStats:
    def __init__(self, batch_first):
        self.batch_first = batch_first

    def compute(self, scores):
        # scores: batch x time
        return scores.clone() if self.batch_first else scores.t().clone(memory_format=torch.contiguous_format)

    def canonical(self, stats):
        return (stats if self.batch_first else stats.t()).reshape(-1).contiguous()


def sync(stats):
    dist.all_reduce(stats, op=dist.ReduceOp.MAX)
    return stats


CONFIG = {0: {"batch_first": True}, 1: {"batch_first": True}}

dist.init_process_group("gloo")
rank = dist.get_rank()
layer = AttnStats(**CONFIG.get(rank, {"batch_first": False}))
scores = torch.arange(12.0).view(6, 2) * (rank + 1)
stats = sync(layer.canonical(layer.compute(scores)))
assert torch.equal(stats, torch.arange(12.0) * 3)
dist.barrier()
dist.destroy_process_group()
