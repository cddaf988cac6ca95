# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: functional collectives whose async results are waited for implicitly by use
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.full((4,), float(rank + 1))
y = funcol.all_reduce(x, "sum", dist.group.WORLD)
x.add_(0)  # the input is not aliased by the functional result
z = y * 2
g = funcol.all_gather_tensor(z, 0, dist.group.WORLD)
h = funcol.wait_tensor(g)
assert h.sum() == 48
dist.destroy_process_group()
