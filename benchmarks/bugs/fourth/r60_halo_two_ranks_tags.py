# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the two messages between the same two ranks have tags of their own, so each halo gets its edge
import torch
import torch.distributed as dist

LEFTWARD, RIGHTWARD = 1, 2


class Domain:
    def __init__(self, rank, world, width=4):
        self.prev, self.next = (rank - 1) % world, (rank + 1) % world
        self.cells = torch.arange(float(width)) + 10 * rank
        self.left_halo = torch.zeros(1)
        self.right_halo = torch.zeros(1)

    def exchange(self):
        reqs = [
            dist.isend(self.cells[:1].clone(), self.prev, tag=LEFTWARD),
            dist.isend(self.cells[-1:].clone(), self.next, tag=RIGHTWARD),
            dist.irecv(self.left_halo, self.prev, tag=RIGHTWARD),
            dist.irecv(self.right_halo, self.next, tag=LEFTWARD),
        ]
        for r in reqs:
            r.wait()

    def relax(self):
        padded = torch.cat([self.left_halo, self.cells, self.right_halo])
        self.cells = (padded[:-2] + padded[1:-1] + padded[2:]) / 3


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dom = Domain(rank, dist.get_world_size())
    dom.exchange()
    assert dom.left_halo.item() == (13 if rank == 0 else 3)
    assert dom.right_halo.item() == (10 if rank == 0 else 0)
    for _ in range(3):
        dom.relax()
        dom.exchange()
    dist.barrier()
    dist.destroy_process_group()


main()
