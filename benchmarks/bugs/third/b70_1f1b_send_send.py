# ranks: 2
# kind: deadlock|backend-hazard
# faulty: any
# lines: 18,27
# profile: gloo
# what: in steady state stage 0 blocks in the send of the next activation while stage 1 blocks in the send of a gradient to stage 0: neither receives
import torch
import torch.distributed as dist

SHAPE = (1 << 22,)
N = 4


def stage0():
    grad = torch.empty(SHAPE)
    dist.send(torch.ones(SHAPE), 1, tag=0)
    for mb in range(1, N):
        dist.send(torch.ones(SHAPE), 1, tag=mb)
        dist.recv(grad, 1, tag=100 + mb - 1)
    dist.recv(grad, 1, tag=100 + N - 1)


def stage1():
    act = torch.empty(SHAPE)
    for mb in range(N):
        dist.recv(act, 0, tag=mb)
        dist.send(act * 0.1, 0, tag=100 + mb)


dist.init_process_group("gloo")
(stage0, stage1)[dist.get_rank()]()
dist.destroy_process_group()
