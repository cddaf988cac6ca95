# ranks: 3
# kind: unwaited-work
# faulty: any
# lines: 14
# profile: gloo
# what: broadcast_buffers drops the Work of every async broadcast; nobody waits before the program ends
import torch
import torch.nn as nn
import torch.distributed as dist


def broadcast_buffers(module, src=0):
    for b in module.buffers():
        dist.broadcast(b, src=src, async_op=True)


dist.init_process_group("gloo")
bn = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(2))
broadcast_buffers(bn)
dist.barrier()
dist.destroy_process_group()
