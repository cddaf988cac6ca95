# ranks: 2
# kind: unwaited-work
# faulty: any
# lines: 13
# profile: gloo
# what: the functional all_reduce returns a new tensor; the result is thrown away and never waited for, x is used as though it had been reduced in place
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


def tp_reduce(x, group):
    funcol.all_reduce(x, "sum", group)
    return x


dist.init_process_group("gloo")
x = torch.full((4,), float(dist.get_rank() + 1))
for layer in range(2):
    x = tp_reduce(x * 0.5, dist.group.WORLD)
dist.barrier()
dist.destroy_process_group()
