# ranks: 3
# decides: fault
# kind: none
# lines: none
# minimum: none
# faults: kill
# report: https://github.com/mpi-forum/mpi-issues/issues/1119
# what: whoever ends well says so too, a survivor counts those, and goes on alone if nobody
#     else is left
from datetime import timedelta

import torch
import torch.distributed as dist


def step(rank):
    mean, part = torch.full((1,), float(rank)), torch.empty(1)
    if rank == 0:
        for peer in (1, 2):
            dist.recv(part, src=peer)
            mean += part
        for peer in (1, 2):
            dist.send(mean, dst=peer)
    else:
        dist.send(mean, dst=0)
        dist.recv(mean, src=0)


def settle(store, world, wait):
    """A survivor goes on when it knows what became of all but one."""
    if store.add("settled", 1) >= world - 1:
        store.set("all settled", "1")
    try:
        if wait:
            store.wait(["all settled"], timedelta(seconds=0.5))
    except dist.DistStoreError:
        print("nobody else is left")


def main():
    store, rank, world = next(dist.rendezvous("env://"))
    lost = False
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        step(rank)
    except RuntimeError:
        lost = True
    if dist.is_initialized():
        dist.destroy_process_group()
    settle(store, world, wait=lost)


if __name__ == "__main__":
    main()
