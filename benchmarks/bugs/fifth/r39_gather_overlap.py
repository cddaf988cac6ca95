# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the local shard is the slice of the output at the place of the own rank, which all_gather_into_tensor allows
import torch
import torch.distributed as dist


class FlatParameter:
    """One flat buffer; the local shard lives inside it."""

    def __init__(self, numel, rank, world):
        self.rank, self.world = rank, world
        self.chunk = numel // world
        self.flat = torch.zeros(numel)
        self.shard = self.flat.narrow(0, self._offset(), self.chunk)
        self.shard.fill_(rank + 1.0)

    def _offset(self):
        return self.rank * self.chunk

    def unshard(self):
        dist.all_gather_into_tensor(self.flat, self.shard)
        return self.flat

    def step(self, lr):
        self.shard.sub_(lr * self.shard)


def train(param, steps):
    for _ in range(steps):
        full = param.unshard()
        loss = full.square().sum()
        param.step(lr=0.1)
    return loss.item()


def main():
    dist.init_process_group("gloo")
    param = FlatParameter(12, dist.get_rank(), dist.get_world_size())
    loss = train(param, steps=2)
    want = sum(4 * (0.9 * (r + 1)) ** 2 for r in range(dist.get_world_size()))
    print(f"rank {param.rank}: loss {loss:.3f}, expected {want:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
