# ranks: 3
# kind: mismatch|deadlock
# faulty: any
# lines: 29,34,35,36,54
# profile: gloo
# what: the ranks that are not the main process return before the sharded state is gathered for the checkpoint
import os
import tempfile

import torch
import torch.distributed as dist


def get_rank():
    return dist.get_rank() if dist.is_initialized() else 0


def is_main_process():
    return get_rank() == 0


class ShardedParam:
    def __init__(self, numel, rank, world):
        self.world = world
        self.local = torch.full((numel // world,), float(rank))

    def full(self):
        parts = [torch.empty_like(self.local) for _ in range(self.world)]
        dist.all_gather(parts, self.local)
        return torch.cat(parts)


def save(params):
    if not is_main_process():
        return
    state = {name: p.full() for name, p in params.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        torch.save(state, path)
        print("saved", sorted(torch.load(path)))


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    params = {n: ShardedParam(12, get_rank(), world) for n in ("weight", "bias")}
    for p in params.values():
        p.local.mul_(0.5)
    save(params)


main()
if dist.is_initialized():
    dist.destroy_process_group()
