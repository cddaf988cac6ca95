# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: local early stop decisions are agreed on by a MAX all_reduce before anyone leaves the loop
import torch
import torch.distributed as dist


def any_rank(flag):
    t = torch.tensor([1 if flag else 0])
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item() == 1


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(20):
    g = torch.ones(4)
    dist.all_reduce(g)
    if any_rank(rank == 2 and step == 3):
        break
assert step == 3
dist.destroy_process_group()
