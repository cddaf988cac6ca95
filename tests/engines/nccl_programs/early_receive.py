"""A receive is posted before a collective; its message is sent after it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total, message = torch.ones(1), torch.ones(4)
if dist.get_rank() == 1:
    receiving = dist.irecv(message, 0)
dist.all_reduce(total)
if dist.get_rank() == 0:
    dist.send(message, 1)
elif dist.get_rank() == 1:
    receiving.wait()
dist.destroy_process_group()
