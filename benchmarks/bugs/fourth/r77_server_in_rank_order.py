# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the parameter server receives from the workers one after the other by rank, so the order of its momentum updates is fixed
import torch
import torch.distributed as dist


class ParameterServer:
    def __init__(self, dim, workers):
        self.w = torch.zeros(dim)
        self.m = torch.zeros(dim)
        self.workers = workers

    def serve(self):
        for src in range(1, self.workers + 1):
            grad = torch.empty_like(self.w)
            dist.recv(grad, src=src)
            self.m = 0.9 * self.m + grad
            self.w -= 0.1 * self.m


def worker(rank, dim):
    grad = torch.full((dim,), float(rank) ** 2)
    dist.send(grad, dst=0)


def main(dim=3):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    server = ParameterServer(dim, world - 1)
    if rank == 0:
        server.serve()
    else:
        worker(rank, dim)
    dist.broadcast(server.w, src=0)
    assert abs(server.w[0].item() + 0.1 * (1 + 4.9 + 13.41)) < 1e-5, server.w
    dist.destroy_process_group()


main()
