# ranks: 3
# kind: lost-result
# faulty: any
# lines: 13,25
# profile: gloo
# what: the validation loss is reduced to rank 0 but every rank compares its own tensor to choose the best epoch
import torch
import torch.distributed as dist


def validate(rank, epoch):
    loss = torch.tensor([abs(epoch - 2.0) + 0.1 * rank])
    dist.reduce(loss, dst=0)
    return loss


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    best, best_epoch = float("inf"), -1
    for epoch in range(4):
        w = torch.full((3,), float(rank))
        dist.all_reduce(w)
        val = validate(rank, epoch)
        if val.item() < best:
            best, best_epoch = val.item(), epoch
    print(f"rank {rank}: best {best:.3f} in epoch {best_epoch}")
    dist.barrier()
    dist.destroy_process_group()


main()
