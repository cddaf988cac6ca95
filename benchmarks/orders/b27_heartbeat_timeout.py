# ranks: 3
# decides: time
# kind: mismatch|deadlock|rank-failed
# lines: 49-52
# minimum: 1
# faults: delay
# report: https://github.com/mars-project/mars/issues/470
# what: rank 0 takes a slow worker for dead and goes on without it; the worker does not know
#     of it and reduces with all
import json
import time
from datetime import timedelta

import torch
import torch.distributed as dist

STALE = 0.05


def monitor(store, world):
    seen = {worker: (b"", time.monotonic()) for worker in range(1, world)}
    members, working = [0], set(seen)
    while working:
        for worker in sorted(working):
            beat, since = store.get(f"beat/{worker}"), time.monotonic()
            if beat != seen[worker][0]:
                seen[worker] = beat, since
            if beat == b"done":
                members.append(worker)
            if beat == b"done" or since - seen[worker][1] > STALE:
                working.discard(worker)
        time.sleep(0.005)
    store.set("members", json.dumps(members))


def work(store, rank):
    for step in range(3):
        store.set(f"beat/{rank}", str(step))
        time.sleep(0.005)
    store.set(f"beat/{rank}", "done")


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=6))
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    monitor(store, world) if rank == 0 else work(store, rank)
    members = json.loads(store.get("members"))
    parts = len(members) < world and rank in members
    group = dist.new_group(members, timeout=timedelta(hours=6)) if parts else None
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    assert total.item() == len(members), f"{total.item():.0f} ranks of {members}"


if __name__ == "__main__":
    main()
