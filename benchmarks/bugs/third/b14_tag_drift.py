# ranks: 2
# kind: deadlock
# faulty: any
# lines: 21,30
# profile: gloo
# what: the sender tags with the microbatch index, the receiver with a counter that skips every evaluation microbatch, so the tags diverge at microbatch 3 (recv tag 3 vs send tag 4)
import torch
import torch.distributed as dist

N = 6


def is_eval(mb):
    return mb == 3


def first_stage():
    for mb in range(N):
        if is_eval(mb):
            continue
        dist.send(torch.full((2,), float(mb)), 1, tag=mb)


def last_stage():
    seen = 0
    buf = torch.zeros(2)
    for mb in range(N):
        if is_eval(mb):
            continue
        dist.recv(buf, 0, tag=seen)
        seen += 1


dist.init_process_group("gloo")
first_stage() if dist.get_rank() == 0 else last_stage()
dist.barrier()
dist.destroy_process_group()
