"""The result goes into a copy that nobody keeps."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
counts = torch.ones(4, 4).t()
dist.all_reduce(counts.contiguous())
dist.all_reduce(torch.ones(1))
total = counts.sum()
