# ranks: 4
# kind: deadlock
# faulty: 2
# lines: 15,29
# profile: gloo
# what: the group has members 0, 1, 2 but the caller still asks for rank < 2 (as it was with two replicas): rank 2 never calls and waits in the final barrier
import torch
import torch.distributed as dist

REPLICAS = [0, 1, 2]
SERVER = 3


def sync(grad, group):
    dist.all_reduce(grad, group=group)
    return grad / dist.get_world_size(group)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    workers = dist.new_group(REPLICAS)
    w = torch.zeros(3)
    for step in range(3):
        grad = torch.full((3,), float(rank + step))
        if rank < 2:
            grad = sync(grad, workers)
        w -= 0.1 * grad
    dist.barrier()
    if rank == SERVER:
        print("server done")
    dist.destroy_process_group()


main()
