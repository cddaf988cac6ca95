# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the reduced loss is read on rank 0 only, and the others learn the decision by a broadcast
import torch
import torch.distributed as dist


def validate(rank, epoch):
    loss = torch.tensor([abs(epoch - 2.0) + 0.1 * rank])
    dist.reduce(loss, dst=0)
    if rank == 0:
        return loss.item() / dist.get_world_size()
    return None


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    best, best_epoch = float("inf"), torch.tensor([-1])
    for epoch in range(4):
        w = torch.full((3,), float(rank))
        dist.all_reduce(w)
        val = validate(rank, epoch)
        if rank == 0 and val < best:
            best = val
            best_epoch.fill_(epoch)
        dist.broadcast(best_epoch, src=0)
    assert best_epoch.item() == 2
    dist.barrier()
    dist.destroy_process_group()


main()
