"""Rank 2 looks for the others at another port."""

import os

import torch.distributed as dist

if os.environ["RANK"] == "2":
    os.environ["MASTER_PORT"] = "29501"
dist.init_process_group("gloo")
dist.barrier()
