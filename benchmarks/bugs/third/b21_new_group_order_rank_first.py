# ranks: 4
# kind: mismatch
# faulty: 2,3
# lines: 14
# profile: gloo
# what: ranks 2,3 create "their" half first, so the first new_group call has [0,1] on some ranks and [2,3] on the others
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
halves = {"low": [0, 1], "high": [2, 3]}
names = sorted(halves, key=lambda k: rank not in halves[k])
groups = {n: dist.new_group(halves[n]) for n in names}
mine = "low" if rank < 2 else "high"
x = torch.ones(4)
dist.all_reduce(x, group=groups[mine])
dist.barrier()
dist.destroy_process_group()
