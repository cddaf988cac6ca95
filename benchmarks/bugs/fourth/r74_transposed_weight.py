# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: rank 1 loaded a transposed weight, but it is turned and made contiguous on loading, so that the gradients have one shape
import torch
import torch.distributed as dist


def load_layer(rank):
    shape = (3, 4) if rank == 0 else (4, 3)
    w = torch.arange(12.0).view(shape)
    if w.shape != (3, 4):
        w = w.t().contiguous()
    return torch.nn.Parameter(w)


def forward(weight, x):
    return x @ weight


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weight = load_layer(rank)
    dist.broadcast(weight.data, src=0)
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
