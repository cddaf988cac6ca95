# ranks: 2
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/DARMA-tasking/vt/issues/500
# what: a counter of tasks that are not done is raised before a task is handed over and
#     lowered after it is done
import time

import torch
import torch.distributed as dist


def work(store, rank, world):
    taken = 0
    while True:
        if store.add(f"inbox/{rank}", 0) > taken:
            taken += 1
            if taken == 1:
                store.add("pending", 1)
                store.add(f"inbox/{(rank + 1) % world}", 1)
            store.add("pending", -1)
            continue
        if store.add("pending", 0) == 0:
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
