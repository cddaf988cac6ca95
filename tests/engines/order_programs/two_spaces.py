import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group([1, 2, 3])
if dist.get_rank() > 0:
    tensor = torch.ones(2)
    dist.broadcast(tensor, group=group, group_src=1)
    dist.reduce(tensor, dst=1, group=group)
