# ranks: 2
# kind: backend-hazard
# faulty: any
# lines: 19,23
# profile: nccl
# what: two async all_reduces on two groups (communicators) are launched in opposite order on the two ranks; Gloo passes, NCCL kernels of two communicators can deadlock
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
grad_pg = dist.new_group([0, 1])
stat_pg = dist.new_group([0, 1])
grads = torch.ones(256)
stats = torch.ones(2)


def launch_grads():
    return dist.all_reduce(grads, group=grad_pg, async_op=True)


def launch_stats():
    return dist.all_reduce(stats, group=stat_pg, async_op=True)


todo = [launch_grads, launch_stats]
if rank == 1:
    todo.reverse()
works = [f() for f in todo]
for w in works:
    w.wait()
dist.barrier()
dist.destroy_process_group()
