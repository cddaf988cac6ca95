# ranks: 2
# kind: mismatch
# faulty: 1
# lines: 28
# profile: gloo
# what: rank 1 loaded a Conv1D style checkpoint whose weight is transposed: its gradient has as many elements in another shape
import torch
import torch.distributed as dist


def load_layer(rank):
    shape = (3, 4) if rank == 0 else (4, 3)
    return torch.nn.Parameter(torch.arange(12.0).view(shape))


def forward(weight, x):
    return x @ weight if weight.shape[0] == x.shape[1] else x @ weight.t()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weight = load_layer(rank)
    x = torch.ones(2, 3)
    for step in range(2):
        weight.grad = None
        forward(weight, x).pow(2).sum().backward()
        dist.all_reduce(weight.grad)
        with torch.no_grad():
            weight -= 0.001 * weight.grad
    dist.barrier()
    dist.destroy_process_group()


main()
