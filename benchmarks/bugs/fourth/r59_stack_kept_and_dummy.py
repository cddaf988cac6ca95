# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the stack is kept and read after the all_reduce; the all_reduce of a fresh zero before it only serves as a barrier
import torch
import torch.distributed as dist


def compute_losses(rank, step):
    return {
        "policy": torch.tensor(0.5 + rank),
        "value": torch.tensor(1.5 * (rank + 1)),
        "entropy": torch.tensor(0.01 * step),
    }


def synchronize():
    dist.all_reduce(torch.zeros(1))


def reduce_losses(losses):
    names = sorted(losses)
    stacked = torch.stack([losses[n] for n in names])
    dist.all_reduce(stacked)
    stacked /= dist.get_world_size()
    return dict(zip(names, stacked.tolist()))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = []
    for step in range(3):
        synchronize()
        log.append(reduce_losses(compute_losses(rank, step)))
    assert abs(log[-1]["value"] - 2.25) < 1e-6
    dist.barrier()
    dist.destroy_process_group()


main()
