# ranks: 2
# decides: order
# kind: rank-failed
# lines: 16-30
# minimum: 1
# report: https://github.com/DARMA-tasking/vt/issues/500
# what: the ranks stop when all of them say that they are idle, though a task may lie in the
#     inbox of one that has said so before
import time

import torch
import torch.distributed as dist


def work(store, rank, world):
    taken, idle = 0, False
    while True:
        if store.add(f"inbox/{rank}", 0) > taken:
            if idle:
                store.add("idle", -1)
                idle = False
            taken += 1
            if taken == 1:
                store.add(f"inbox/{(rank + 1) % world}", 1)
            continue
        if not idle:
            store.add("idle", 1)
            idle = True
        if store.add("idle", 0) == world:
            return taken
        time.sleep(0.001)


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        store.add("pending", 1)
        store.add("inbox/0", 1)
    dist.barrier()
    done = torch.tensor([float(work(store, rank, world))])
    dist.all_reduce(done)
    assert done.item() == 3, f"{done.item():.0f} of 3 tasks are done"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
