# ranks: 4
# kind: message-race
# faulty: 0
# lines: 20
# profile: gloo
# what: the parameter server applies momentum updates in the order of arrival from any worker; momentum does not commute, so the weights depend on timing
import torch
import torch.distributed as dist


class ParameterServer:
    def __init__(self, dim, workers):
        self.w = torch.zeros(dim)
        self.m = torch.zeros(dim)
        self.workers = workers

    def serve(self):
        for _ in range(self.workers):
            grad = torch.empty_like(self.w)
            dist.recv(grad, src=None)
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
    print(rank, server.w.tolist())
    dist.destroy_process_group()


main()
