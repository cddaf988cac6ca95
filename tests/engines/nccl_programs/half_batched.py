"""A message that is batched where it is sent, and not where it is received."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
tensor = torch.ones(4)
if dist.get_rank() == 0:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, 1)]):
        work.wait()
elif dist.get_rank() == 1:
    dist.recv(tensor, 0)
dist.destroy_process_group()
