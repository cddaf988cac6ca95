# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: new_group(use_local_synchronization=True) is called by the members only
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = [0, 1] if rank < 2 else [2, 3]
g = dist.new_group(pair, use_local_synchronization=True)
t = torch.full((2,), float(rank))
dist.all_reduce(t, group=g)
assert t[0] == sum(pair)
dist.barrier()
dist.destroy_process_group()
