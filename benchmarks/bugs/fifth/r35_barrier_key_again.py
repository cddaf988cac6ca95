# ranks: 3
# kind: none
# faulty: none
# lines: none
# profile: gloo
# what: the store barrier uses a counter of its own for each round, so the plan is read after it was written and replaced after it was read
import os
import time
from datetime import timedelta

import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class StoreBarrier:
    def __init__(self, store, name):
        self.store, self.name, self.round = store, name, 0

    def wait(self):
        key = f"{self.name}/arrived/{self.round}"
        self.round += 1
        self.store.add(key, 1)
        while self.store.add(key, 0) < WORLD:
            time.sleep(0.005)


def rounds(store, n):
    written, read = StoreBarrier(store, "written"), StoreBarrier(store, "read")
    plans = []
    for i in range(n):
        if RANK == 0:
            time.sleep(0.05)
            store.set("plan", f"plan-{i}")
        written.wait()
        plans.append(store.get("plan").decode())
        read.wait()
    return plans


if __name__ == "__main__":
    dist.init_process_group("gloo")
    port = [None]
    if RANK == 0:
        store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=30))
        port = [store.port]
    dist.broadcast_object_list(port, src=0)
    if RANK != 0:
        store = dist.TCPStore("127.0.0.1", port[0], None, False, timeout=timedelta(seconds=30))
    print(RANK, rounds(store, 3))
    dist.barrier()
    dist.destroy_process_group()
