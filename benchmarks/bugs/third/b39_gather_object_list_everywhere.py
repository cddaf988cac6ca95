# ranks: 3
# kind: invalid-call
# faulty: 0,2
# lines: 13
# profile: gloo
# what: object_gather_list is given on every rank although only dst=1 may pass one
import torch
import torch.distributed as dist


def gather_preds(p, dst):
    buf = [None] * dist.get_world_size()
    dist.gather_object(p, buf, dst=dst)
    return buf


dist.init_process_group("gloo")
gather_preds({"rank": dist.get_rank()}, 1)
dist.destroy_process_group()
