import torch
import torch.distributed as dist

dist.init_process_group("gloo")
loss, count = torch.ones(1), torch.ones(1)
if dist.get_rank() < 2:
    dist.all_reduce(loss)
    dist.all_reduce(count)
else:
    dist.all_reduce(count)
    dist.all_reduce(loss)
