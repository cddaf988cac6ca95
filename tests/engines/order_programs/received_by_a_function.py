import torch
import torch.distributed as dist


def receive():
    rollout = torch.empty(2)
    dist.recv(rollout)
    return rollout


def advantage():
    baseline = receive()
    rollout = receive()
    return rollout - baseline


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    advantage()
elif dist.get_rank() < 3:
    dist.send(torch.ones(2), dst=0)
dist.barrier()
dist.destroy_process_group()
