# ranks: 2
# kind: mismatch
# faulty: any
# lines: 19
# profile: gloo
# what: rank 1 keeps its weight in channels_last: same shape and dtype but other strides, so all_reduce adds elements in storage order and silently mixes them
import torch
import torch.nn as nn
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
conv = nn.Conv2d(3, 4, 3)
if rank == 1 and hasattr(torch, "channels_last"):
    conv = conv.to(memory_format=torch.channels_last)
with torch.no_grad():
    for p in conv.parameters():
        dist.all_reduce(p.data)
        p /= dist.get_world_size()
dist.barrier()
dist.destroy_process_group()
