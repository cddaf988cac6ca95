import time

import torch.distributed as dist


def store_barrier(store, n):
    store.add("arrived", 1)
    while int(store.get("arrived")) < n:
        time.sleep(0.001)


dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
plans = []
for epoch in range(3):
    if dist.get_rank() == 0:
        store.set("plan", f"epoch {epoch}")
    store_barrier(store, dist.get_world_size())
    plans.append(store.get("plan"))
    store_barrier(store, dist.get_world_size())
dist.barrier()
dist.destroy_process_group()
