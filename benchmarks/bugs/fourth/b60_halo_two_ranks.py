# ranks: 2
# kind: crossed-order|message-race|backend-hazard
# faulty: any
# lines: 20,22
# profile: gloo
# what: with two ranks prev and next are the same peer: its left edge arrives first and is put into the left halo, where its right edge belongs
import torch
import torch.distributed as dist


class Domain:
    def __init__(self, rank, world, width=4):
        self.prev, self.next = (rank - 1) % world, (rank + 1) % world
        self.cells = torch.arange(float(width)) + 10 * rank
        self.left_halo = torch.zeros(1)
        self.right_halo = torch.zeros(1)

    def exchange(self):
        reqs = [
            dist.isend(self.cells[:1].clone(), self.prev),
            dist.isend(self.cells[-1:].clone(), self.next),
            dist.irecv(self.left_halo, self.prev),
            dist.irecv(self.right_halo, self.next),
        ]
        for r in reqs:
            r.wait()

    def relax(self):
        padded = torch.cat([self.left_halo, self.cells, self.right_halo])
        self.cells = (padded[:-2] + padded[1:-1] + padded[2:]) / 3


def main():
    dist.init_process_group("gloo")
    dom = Domain(dist.get_rank(), dist.get_world_size())
    for _ in range(3):
        dom.exchange()
        dom.relax()
    print(dom.cells.tolist())
    dist.barrier()
    dist.destroy_process_group()


main()
