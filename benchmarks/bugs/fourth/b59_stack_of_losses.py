# ranks: 2
# kind: lost-result
# faulty: any
# lines: 21,23
# profile: gloo
# what: the losses are stacked for one all_reduce and the stack is forgotten: the logged values are still the local ones
import torch
import torch.distributed as dist


def compute_losses(rank, step):
    return {
        "policy": torch.tensor(0.5 + rank),
        "value": torch.tensor(1.5 * (rank + 1)),
        "entropy": torch.tensor(0.01 * step),
    }


def reduce_losses(losses):
    names = sorted(losses)
    dist.all_reduce(torch.stack([losses[n] for n in names]))
    world = dist.get_world_size()
    return {n: losses[n].item() / world for n in names}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = []
    for step in range(3):
        log.append(reduce_losses(compute_losses(rank, step)))
    if rank == 0:
        print(log[-1])
    dist.barrier()
    dist.destroy_process_group()


main()
