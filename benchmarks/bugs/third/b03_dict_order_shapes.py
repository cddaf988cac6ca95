# ranks: 2
# kind: mismatch
# faulty: any
# lines: 22
# profile: gloo
# what: rank 1 registers "bias" before "weight", so the loop's first all_reduce has shape (3,) on rank 1 and (4,3) on rank 0
import os

import torch
import torch.distributed as dist


def build_params(from_ckpt):
    if from_ckpt:
        # checkpoints are stored with sorted keys
        return {"bias": torch.ones(3), "weight": torch.ones(4, 3)}
    return {"weight": torch.ones(4, 3), "bias": torch.ones(3)}


def sync(params):
    for name, p in params.items():
        dist.all_reduce(p)
        p /= dist.get_world_size()


dist.init_process_group("gloo")
params = build_params(from_ckpt=int(os.environ["RANK"]) == 1)
sync(params)
dist.destroy_process_group()
