import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mean, variance = torch.zeros(4), torch.ones(4)


def share_mean() -> None:
    dist.broadcast(mean, src=0)


def share_variance() -> None:
    dist.broadcast(variance, src=0)


steps = [share_mean, share_variance]
for share in reversed(steps) if dist.get_rank() == 3 else steps:
    share()
