# ranks: 3
# kind: mismatch
# faulty: 2
# lines: 20,26,36
# profile: gloo
# what: rank 2 keeps its weight transposed, so the all_reduce meets tensors of as many elements in another shape
import os

import torch
import torch.distributed as dist

LAYOUT = {0: "out_in", 1: "out_in", 2: "in_out"}


class Projection:
    def __init__(self, n_in, n_out, layout):
        torch.manual_seed(17)
        weight = torch.randn(n_out, n_in)
        self.transposed = layout == "in_out"
        self.weight = (weight.t().contiguous() if self.transposed else weight).requires_grad_()

    def __call__(self, x):
        return x @ (self.weight if self.transposed else self.weight.t())

    def canonical_grad(self):
        return self.weight.grad.clone()

    def apply_grad(self, grad, lr):
        self.weight.data.sub_(lr * grad)


def train_step(layer, x):
    layer.weight.grad = None
    layer(x).square().mean().backward()
    grad = layer.canonical_grad()
    dist.all_reduce(grad)
    layer.apply_grad(grad / dist.get_world_size(), lr=0.1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    layer = Projection(5, 3, LAYOUT[rank])
    for step in range(3):
        gen = torch.Generator().manual_seed(step)
        train_step(layer, torch.randn(8, 5, generator=gen))
    print(rank, round(layer(torch.ones(1, 5)).norm().item(), 5))
    dist.destroy_process_group()
