# ranks: 2
# kind: in-flight-buffer|unwaited-work
# faulty: any
# lines: 26,27,31,34,41
# profile: gloo
# what: the prefetcher waits for the handle of the layer before, so a weight is used while its broadcast is in flight and the last handle is never waited for
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
        handle = self.handles.pop(i - 1, None)
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
