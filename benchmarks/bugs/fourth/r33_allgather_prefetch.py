# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the prefetch keeps its work next to the buffer and the layer waits for it before the product
import torch
import torch.distributed as dist


class ShardedLinear:
    def __init__(self, dim, world, rank):
        self.dim = dim
        self.shard = torch.full((dim // world, dim), 0.01 * (rank + 1))
        self.pending = None

    def prefetch(self):
        full = torch.empty(self.dim, self.dim)
        self.pending = full, dist.all_gather_into_tensor(full, self.shard, async_op=True)

    def __call__(self, x):
        if self.pending is None:
            self.prefetch()
        full, work = self.pending
        self.pending = None
        work.wait()
        return x @ full.t()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = [ShardedLinear(128, world, rank) for _ in range(4)]
    x = torch.ones(1, 128)
    # order of the gathers is the same on all ranks: 1, 0, 2, 3
    for i, layer in enumerate(layers):
        if i + 1 < len(layers):
            layers[i + 1].prefetch()
        x = layer(x)
    both = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(both, x)
    assert torch.equal(both[0], both[1])
    dist.destroy_process_group()


main()
