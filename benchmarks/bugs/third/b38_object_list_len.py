# ranks: 3
# kind: mismatch
# faulty: 2
# lines: 13
# profile: gloo
# what: rank 2 passes a placeholder list of one object where the source broadcasts two
import torch
import torch.distributed as dist


def share(rank, *objs):
    buf = list(objs) if rank == 0 else [None] * len(objs)
    dist.broadcast_object_list(buf, src=0)
    return buf


dist.init_process_group("gloo")
rank = dist.get_rank()
extras = () if rank == 2 else ({"seed": 3},)
cfg, *rest = share(rank, {"lr": 0.1}, *extras)
dist.barrier()
dist.destroy_process_group()
