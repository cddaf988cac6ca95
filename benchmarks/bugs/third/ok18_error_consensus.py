# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: a decode error on one rank is turned into a flag; all ranks agree to skip the batch
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
raws = [["1", "2", "3"], ["4", "x" if rank == 1 else "5", "6"]]
skipped = 0
for raw in raws:
    try:
        g, bad = torch.tensor([float(v) for v in raw]), 0
    except ValueError:
        g, bad = torch.zeros(len(raw)), 1
    flag = torch.tensor([bad])
    dist.all_reduce(flag)
    if flag.item():
        skipped += 1
        continue
    dist.all_reduce(g)
assert skipped == 1
dist.destroy_process_group()
