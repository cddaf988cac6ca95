# ranks: 2
# kind: message-race
# faulty: any
# lines: 25,27
# profile: gloo
# what: the store barrier counts under one key: from the second use on the count is reached already, so rank 0 replaces the plan while rank 1 may not have read the old one
import time

import torch.distributed as dist


def store_barrier(store, key, n):
    store.add(key, 1)
    while int(store.get(key)) < n:
        time.sleep(0.01)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    seen = []
    for epoch in range(3):
        if rank == 0:
            store.set("plan", f"shards-of-epoch-{epoch}")
        store_barrier(store, "plan_ready", world)
        seen.append(store.get("plan").decode())
        store_barrier(store, "plan_ready", world)
    print(rank, seen)
    dist.barrier()
    dist.destroy_process_group()


main()
