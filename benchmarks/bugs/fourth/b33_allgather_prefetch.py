# ranks: 2
# kind: unwaited-work|in-flight-buffer
# faulty: any
# lines: 19,24
# profile: gloo
# what: the parameter shards of the next layer are prefetched with an asynchronous all_gather_into_tensor, but the prefetch throws the work away and the layer is used without a wait
import torch
import torch.distributed as dist


class ShardedLinear:
    def __init__(self, dim, world, rank):
        self.dim = dim
        self.shard = torch.full((dim // world, dim), 0.01 * (rank + 1))
        self.full = None

    def prefetch(self):
        self.full = torch.empty(self.dim, self.dim)
        dist.all_gather_into_tensor(self.full, self.shard, async_op=True)

    def __call__(self, x):
        if self.full is None:
            self.prefetch()
        y = x @ self.full.t()
        self.full = None
        return y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = [ShardedLinear(128, world, rank) for _ in range(4)]
    x = torch.ones(1, 128)
    for i, layer in enumerate(layers):
        if i + 1 < len(layers):
            layers[i + 1].prefetch()
        x = layer(x)
    print(x.mean().item())
    dist.barrier()
    dist.destroy_process_group()


main()
