# ranks: 3
# kind: mismatch|deadlock
# faulty: 1
# lines: 23,34,39
# profile: gloo
# what: only rank 1 runs out of memory and its handler calls a barrier before the retry while the others are in the gradient all_reduce
import functools

import torch
import torch.distributed as dist


def shrink_on_oom(start):
    def deco(fn):
        @functools.wraps(fn)
        def run(*args):
            size = start
            while size > 0:
                try:
                    return fn(size, *args)
                except MemoryError as err:
                    print(f"rank {dist.get_rank()}: {err}, batch size {size} -> {size // 2}")
                    dist.barrier()  # give the peers time to free their caches
                    size //= 2
            raise RuntimeError("no batch size fits")
        return run
    return deco


@shrink_on_oom(start=16)
def train(batch_size, net, limit):
    fits = batch_size * 4 <= limit
    if not fits:
        raise MemoryError("out of memory")
    for _ in range(2):
        net.zero_grad()
        net(torch.randn(batch_size, 8)).sum().backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        dist.all_reduce(flat)
    return batch_size


def main():
    dist.init_process_group("gloo")
    limit = 32 if dist.get_rank() == 1 else 64
    used = train(torch.nn.Linear(8, 8), limit)
    print("trained with", used)
    dist.destroy_process_group()


main()
