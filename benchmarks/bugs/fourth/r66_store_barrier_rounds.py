# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the store barrier has a key per round, so the plan is replaced only after everybody has read it
import time

import torch.distributed as dist


class StoreBarrier:
    def __init__(self, store, n):
        self.store, self.n, self.round = store, n, 0

    def __call__(self):
        self.round += 1
        key = f"barrier/{self.round}"
        self.store.add(key, 1)
        while int(self.store.get(key)) < self.n:
            time.sleep(0.01)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    barrier = StoreBarrier(store, world)
    seen = []
    for epoch in range(3):
        if rank == 0:
            store.set("plan", f"shards-of-epoch-{epoch}")
        barrier()
        seen.append(store.get("plan").decode())
        barrier()
    assert seen == [f"shards-of-epoch-{e}" for e in range(3)]
    dist.barrier()
    dist.destroy_process_group()


main()
