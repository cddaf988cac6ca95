"""Weights and biases, told apart by tag and received the other way round."""

import torch
import torch.distributed as dist

WEIGHT, BIAS = 1, 2

dist.init_process_group("gloo")
weight, bias = torch.zeros(4), torch.zeros(4)
if dist.get_rank() == 0:
    works = [dist.isend(weight, 1, tag=WEIGHT)]
    works += [dist.isend(bias, 1, tag=BIAS)]
    for work in works:
        work.wait()
elif dist.get_rank() == 1:
    dist.recv(bias, 0, tag=BIAS)
    dist.recv(weight, 0, tag=WEIGHT)
dist.destroy_process_group()
