# ranks: 2
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the prefetcher waits for the handle of the layer that it hands out
import torch
import torch.distributed as dist

SIZE = 1 << 21


class Prefetcher:
    """Broadcast the weights of layer i + 1 while layer i computes."""

    def __init__(self, layers, rank):
        self.layers, self.rank = layers, rank
        self.slots = [torch.zeros(SIZE), torch.zeros(SIZE)]
        self.handles = {}

    def fetch(self, i):
        if i >= self.layers:
            return
        slot = self.slots[i % 2]
        if self.rank == 0:
            slot.fill_(float(i + 1))
        self.handles[i] = dist.broadcast(slot, src=0, async_op=True)

    def get(self, i):
        self.fetch(i + 1)
        handle = self.handles.pop(i, None)
        if handle is not None:
            handle.wait()
        return self.slots[i % 2]


def forward(prefetcher, layers):
    seen = []
    for i in range(layers):
        weight = prefetcher.get(i)
        seen.append(weight.min().item())
    return seen


if __name__ == "__main__":
    dist.init_process_group("gloo")
    layers = 4
    pre = Prefetcher(layers, dist.get_rank())
    pre.fetch(0)
    print(dist.get_rank(), forward(pre, layers))
    dist.barrier()
    dist.destroy_process_group()
