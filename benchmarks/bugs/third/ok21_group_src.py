# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: subgroup roots given as group ranks by group_src/group_dst
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
gs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
g = gs[rank % 2]
t = torch.full((2,), float(rank))
dist.broadcast(t, group_src=1, group=g)
assert t[0] == 2 + rank % 2
dist.reduce(t, group_dst=0, group=g)
if dist.get_rank(g) == 0:
    dist.send(t, group=g, group_dst=1)
else:
    dist.recv(t, group=g, group_src=0)
dist.barrier()
dist.destroy_process_group()
