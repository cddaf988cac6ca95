# ranks: 2
# kind: crossed-order
# faulty: any
# lines: 28,29,33,34
# profile: gloo
# what: rank 0 sends the running statistics in the order of the buffers and rank 1 receives them in sorted order of their names, all of one shape
import torch
import torch.distributed as dist
from torch import nn


def make_net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=False))


def stats(module):
    bn = module[1]
    return {"running_var": bn.running_var, "running_mean": bn.running_mean}


def warm_up(net):
    torch.manual_seed(1)
    for _ in range(20):
        net(torch.randn(64, 4) * 3 + 10)


def push_stats(net, dst):
    for tensor in stats(net).values():
        dist.send(tensor, dst)


def pull_stats(net, src):
    for _, tensor in sorted(stats(net).items()):
        dist.recv(tensor, src)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = make_net()
    if rank == 0:
        warm_up(net)
        push_stats(net, dst=1)
    else:
        pull_stats(net, src=0)
    bn = net[1]
    print(rank, round(bn.running_mean.sum().item(), 3), round(bn.running_var.sum().item(), 3))
    dist.barrier()
    dist.destroy_process_group()


main()
