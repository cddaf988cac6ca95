"""A ring, each rank sending to the next, not batched."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mine, theirs = torch.ones(4), torch.empty(4)
sending = dist.isend(mine, (rank + 1) % size)
dist.recv(theirs, (rank - 1) % size)
sending.wait()
dist.destroy_process_group()
