import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    grads = {"weight": torch.ones(1), "bias": torch.ones(1)}
    if dist.get_rank() == 2:
        grads = dict(reversed(grads.items()))
    for grad in grads.values():
        dist.all_reduce(grad)
    dist.destroy_process_group()


main()
