# ranks: 3
# kind: mismatch|deadlock
# faulty: 1
# lines: 23,26
# profile: gloo
# what: rank 1 swallows a decode error and skips that step's all_reduce; it arrives at the final barrier while 0,2 are in their last all_reduce
import torch
import torch.distributed as dist


def decode(raw):
    return torch.tensor([float(x) for x in raw.split(",")])


dist.init_process_group("gloo")
rank = dist.get_rank()
raws = ["1,2", "3,4", "5,6", "7,8"]
if rank == 1:
    raws[2] = "5,?"
for raw in raws:
    try:
        g = decode(raw)
        dist.all_reduce(g)
    except ValueError:
        continue
dist.barrier()
dist.destroy_process_group()
