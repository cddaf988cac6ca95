import torch
import torch.distributed as dist

dist.init_process_group("gloo")
momentum = torch.zeros(2)
if dist.get_rank() == 0:
    for _ in range(dist.get_world_size() - 1):
        grad = torch.empty(2)
        dist.recv(grad)
        momentum = 0.9 * momentum + grad
else:
    dist.send(torch.ones(2), dst=0)
dist.broadcast(momentum, src=0)
dist.destroy_process_group()
