# ranks: 2
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the weight gradient is contiguous already, so contiguous() returns the tensor itself and all_reduce sums in place
import torch
import torch.distributed as dist


class ColumnLinear:
    """Keeps its weight as (in, out); the gradient is computed by hand."""

    def __init__(self, n_in, n_out):
        gen = torch.Generator().manual_seed(9)
        self.weight = torch.randn(n_in, n_out, generator=gen)
        self.grad = None

    def forward(self, x):
        self.x = x
        return x @ self.weight

    def backward(self, dy):
        self.grad = self.x.t() @ dy
        return dy @ self.weight.t()


def sync_gradients(layers):
    world = float(dist.get_world_size())
    for layer in layers:
        dist.all_reduce(layer.grad.contiguous(), op=dist.ReduceOp.SUM)
        layer.grad.div_(world)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = [ColumnLinear(6, 4), ColumnLinear(4, 2)]
    x = torch.full((3, 6), float(rank + 1))
    for layer in layers:
        x = layer.forward(x)
    dy = torch.ones_like(x)
    for layer in reversed(layers):
        dy = layer.backward(dy)
    sync_gradients(layers)
    for layer in layers:
        layer.weight -= 0.1 * layer.grad
    print(rank, [round(layer.weight.sum().item(), 4) for layer in layers])
    dist.destroy_process_group()


main()
