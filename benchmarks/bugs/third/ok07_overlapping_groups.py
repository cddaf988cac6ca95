# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: overlapping subgroups; every rank creates all groups in one order and non-members simply do not call
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
members = [[0, 1, 2], [1, 2, 3], [0, 3]]
groups = [dist.new_group(m) for m in members]
t = torch.ones(2)
for m, g in zip(members, groups):
    if rank in m:
        dist.all_reduce(t, group=g)
        leader = dist.get_global_rank(g, 0)
        dist.broadcast(t, src=leader, group=g)
dist.barrier()
dist.destroy_process_group()
