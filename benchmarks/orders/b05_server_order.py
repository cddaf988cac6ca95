# ranks: 4
# decides: order
# kind: different-results
# lines: 15-19
# minimum: 1
# report: https://github.com/APPFL/APPFL/issues/192
# what: the server applies gradients with momentum in the order in which they arrive, and
#     the weights depend on it
import torch
import torch.distributed as dist


def serve(workers):
    weight, velocity = torch.zeros(2), torch.zeros(2)
    for _ in range(workers):
        gradient = torch.empty(2)
        dist.recv(gradient)
        velocity = 0.5 * velocity + gradient
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
