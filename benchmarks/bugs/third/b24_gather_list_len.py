# ranks: 4
# kind: invalid-call
# faulty: 3
# lines: 20
# profile: gloo
# what: the last rank excludes itself when it sizes the all_gather output list (3 tensors for a group of 4)
import torch
import torch.distributed as dist


def neighbours(rank, ws):
    # everything up to the right neighbour
    return [r for r in range(ws) if r <= max(rank + 1, ws - 1) and not (rank == ws - 1 and r == rank)]


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
x = torch.full((2,), float(rank))
outs = [torch.empty(2) for _ in neighbours(rank, ws)]
dist.all_gather(outs, x)
dist.destroy_process_group()
