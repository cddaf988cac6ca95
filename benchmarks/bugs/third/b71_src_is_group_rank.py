# ranks: 4
# kind: rank-space
# faulty: any
# lines: 13
# profile: gloo
# what: get_group_rank(g, 2) gives 1, which is passed as the global src of broadcast in group [1,2,3]; it is a member, so nothing fails, but rank 1's weights win instead of rank 2's
import torch
import torch.distributed as dist


def adopt_teacher(w, teacher, group):
    root = dist.get_group_rank(group, teacher)
    dist.broadcast(w, src=root, group=group)
    return w


dist.init_process_group("gloo")
rank = dist.get_rank()
students = dist.new_group([1, 2, 3])
w = torch.full((4,), float(rank))
if rank in (1, 2, 3):
    adopt_teacher(w, teacher=2, group=students)
dist.barrier()
dist.destroy_process_group()
