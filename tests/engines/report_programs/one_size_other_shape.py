"""Rank 2 has a transposed weight: as many elements, in another order."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.ones(4, 3) if dist.get_rank() == 2 else torch.ones(3, 4)
dist.all_reduce(weight)
