# ranks: 2
# decides: time
# kind: rank-failed
# lines: 30-35,50
# minimum: 1
# faults: delay
# report: https://github.com/elizaOS/eliza/pull/23842
# what: a rank writes under a lease that has run out while it worked, over what the next
#     holder has written
import time
from datetime import timedelta

import torch.distributed as dist

LEASE = 0.03


def acquire(store, rank):
    held = b""
    while True:
        mine = f"{rank} {time.time() + LEASE}".encode()
        now = store.compare_set("lease", held.decode(), mine.decode())
        if now == mine:
            return
        free = now == b"free" or time.time() > float(now.split()[1])
        held = now if free else b""
        if not free:
            time.sleep(0.004)


def add_one(store, rank):
    old = store.get("total").decode()
    time.sleep(0.004)
    new = f"{int(old.split()[0]) + 1} {rank}"
    store.set("total", new)


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=6))
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        store.set("total", "0 nobody")
    dist.barrier()
    acquire(store, rank)
    add_one(store, rank)
    store.set("lease", "free")
    dist.barrier()
    total = int(store.get("total").split()[0])
    assert total == world, f"{world} ranks have added one, the total is {total}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
