# ranks: 4
# kind: mismatch|deadlock|backend-hazard
# faulty: any
# lines: 13,23
# profile: gloo
# what: only ranks 0 and 1 call new_group for the tensor-parallel pair; ranks 2,3 go on to the all_reduce (this happens to get through on Gloo); new_group must be called by every rank
import torch
import torch.distributed as dist


def make_tp_group(rank):
    if rank < 2:
        return dist.new_group([0, 1])
    return None


dist.init_process_group("gloo")
rank = dist.get_rank()
tp = make_tp_group(rank)
x = torch.ones(2)
if tp is not None:
    dist.all_reduce(x, group=tp)
dist.all_reduce(x)
dist.destroy_process_group()
