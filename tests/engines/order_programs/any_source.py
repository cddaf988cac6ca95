import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.recv(torch.empty(2))
    dist.recv(torch.empty(2), src=2)
elif dist.get_rank() < 3:
    dist.send(torch.ones(2), dst=0)
