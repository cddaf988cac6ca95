"""Two groups, used in opposite orders by the last rank. Gloo does not mind."""

import torch
import torch.distributed as dist


def reduce(model: dist.ProcessGroup, data: dist.ProcessGroup) -> None:
    activations, gradients = torch.ones(8), torch.ones(16)
    works = []
    if dist.get_rank() == 3:
        works.append(dist.all_reduce(gradients, group=data, async_op=True))
    works.append(dist.all_reduce(activations, group=model, async_op=True))
    if dist.get_rank() != 3:
        works.append(dist.all_reduce(gradients, group=data, async_op=True))
    for work in works:
        work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    model, data = dist.new_group(), dist.new_group()
    for _ in range(3):
        reduce(model, data)
    dist.destroy_process_group()


main()
