# ranks: 2
# kind: crossed-order
# faulty: any
# lines: 21,22,23,24
# profile: gloo
# what: in a ring of two the left and the right neighbour are one rank, so the two untagged edges of one shape arrive in each other's halo
import torch
import torch.distributed as dist


class HaloGrid:
    def __init__(self, width=6):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.left = (self.rank - 1) % self.world
        self.right = (self.rank + 1) % self.world
        self.cells = torch.arange(float(width)) + 10 * self.rank
        self.halo_left, self.halo_right = torch.zeros(1), torch.zeros(1)

    def exchange(self):
        works = [
            dist.isend(self.cells[:1].clone(), self.left),
            dist.isend(self.cells[-1:].clone(), self.right),
            dist.irecv(self.halo_left, self.left),
            dist.irecv(self.halo_right, self.right),
        ]
        for w in works:
            w.wait()

    def smooth(self):
        padded = torch.cat([self.halo_left, self.cells, self.halo_right])
        self.cells = (padded[:-2] + padded[1:-1] + padded[2:]) / 3

    def expected_halo(self):
        return 10.0 * self.left + 5, 10.0 * self.right


if __name__ == "__main__":
    dist.init_process_group("gloo")
    grid = HaloGrid()
    grid.exchange()
    got = (grid.halo_left.item(), grid.halo_right.item())
    print(f"rank {grid.rank}: halo {got}, expected {grid.expected_halo()}")
    grid.smooth()
    dist.barrier()
    dist.destroy_process_group()
