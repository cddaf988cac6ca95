# ranks: 4
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/APPFL/APPFL/issues/192
# what: the server waits for all gradients and applies them in the order of the ranks
import torch
import torch.distributed as dist


def serve(workers):
    weight, velocity = torch.zeros(2), torch.zeros(2)
    arrived = {}
    for _ in range(workers):
        gradient = torch.empty(2)
        arrived[dist.recv(gradient)] = gradient
    for rank in sorted(arrived):
        velocity = 0.5 * velocity + arrived[rank]
        weight -= 0.25 * velocity
    print("weight", weight.tolist())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        serve(workers=world - 1)
    else:
        dist.send(torch.full((2,), float(rank)), dst=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
