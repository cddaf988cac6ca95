# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the members 0, 1, 2 of the group all call, the server (rank 3) goes straight to the final barrier
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
        if rank in REPLICAS:
            grad = sync(grad, workers)
        w -= 0.1 * grad
    dist.barrier()
    if rank == SERVER:
        print("server done")
    else:
        assert torch.allclose(w, torch.full((3,), -0.6))
    dist.destroy_process_group()


main()
