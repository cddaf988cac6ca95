# ranks: 2
# kind: crossed-order
# faulty: any
# lines: 30,35,12
# profile: gloo
# what: the main process reduces generator loss then discriminator loss, the other process the other way round in its own branch
import torch
import torch.distributed as dist


def reduce_(t):
    dist.all_reduce(t)
    t /= dist.get_world_size()
    return t


def gan_step(rank, step):
    loss_g = torch.tensor([1.0 + step, 0.1])
    loss_d = torch.tensor([10.0 + step, 0.2])
    return loss_g, loss_d


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    history = []
    for step in range(4):
        loss_g, loss_d = gan_step(rank, step)
        if rank == 0:
            reduce_(loss_g)
            reduce_(loss_d)
            history.append((loss_g[0].item(), loss_d[0].item()))
        else:
            # nothing to write down here
            reduce_(loss_d)
            reduce_(loss_g)
    if rank == 0:
        print(history)
    dist.barrier()
    dist.destroy_process_group()


main()
