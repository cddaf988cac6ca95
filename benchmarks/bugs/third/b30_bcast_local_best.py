# ranks: 3
# kind: mismatch
# faulty: any
# lines: 28
# profile: gloo
# what: each rank broadcasts from the rank it believes to be best (argmin over stale local scores), so the roots disagree
import torch
import torch.distributed as dist


def best_of(scores):
    return int(torch.argmin(scores))


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
scores = torch.full((ws,), 1.0)
for gen in range(3):
    mine = torch.tensor([1.0 / (1 + gen + rank)])
    if gen == 0:
        all_s = [torch.empty(1) for _ in range(ws)]
        dist.all_gather(all_s, mine)
        scores = torch.cat(all_s)
    elif gen == 2:
        # cheap update, only own slot
        scores[rank] = 0.01
    w = torch.full((4,), float(rank))
    dist.broadcast(w, src=best_of(scores))
dist.destroy_process_group()
