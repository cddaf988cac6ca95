# ranks: 2
# kind: mismatch
# faulty: any
# lines: 15,22
# profile: gloo
# what: the last microbatch has only 3 rows, the receiving stage still posts a 4-row buffer; message of 6 elements meets a receive of 8
import torch
import torch.distributed as dist

data = torch.arange(22.0).view(11, 2)


def stage0():
    for mb in data.split(4):
        dist.send(mb.contiguous() * 2, dst=1)


def stage1(n_mb):
    acc = 0.0
    for _ in range(n_mb):
        x = torch.empty(4, 2)
        dist.recv(x, src=0)
        acc += x.sum().item()
    return acc


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    stage0()
else:
    stage1(3)
dist.destroy_process_group()
