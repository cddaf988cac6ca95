"""Both ranks go through the parameters, in other orders."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
state = {"weight": torch.ones(4), "bias": torch.zeros(4)}
if rank == 0:
    for name in state:
        dist.send(state[name], dst=1)
elif rank == 1:
    for name in sorted(state):
        dist.recv(state[name], src=0)
