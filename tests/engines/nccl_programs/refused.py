"""Flags are combined bit by bit, which NCCL has not."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
flags = torch.ones(4, dtype=torch.int32)
dist.all_reduce(flags, op=dist.ReduceOp.BOR)
dist.destroy_process_group()
