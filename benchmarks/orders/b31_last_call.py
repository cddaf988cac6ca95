# ranks: 3
# decides: time
# kind: rank-failed
# lines: 30-31,36-40
# minimum: 1
# report: https://github.com/pytorch/pytorch/issues/111646
# what: a rank joins between the moment at which the host counts the members and the one at
#     which it closes the meeting
import json
import time

import torch.distributed as dist


def change(store, edit):
    """The state after the edit, which is made only on the state that it has seen."""
    old = ""
    while True:
        now = store.compare_set("meeting", old, old).decode()
        if now == old:
            new = edit(json.loads(old or "[]"))
            now = store.compare_set("meeting", old, json.dumps(new)).decode()
            if json.loads(now) == new:
                return new
        old = now


def host(store):
    time.sleep(0.02)
    members = store.add("joined", 0)
    store.set("closed", str(members))


def join(store, rank):
    time.sleep(0.02 if rank == 2 else 0.005)
    if store.check(["closed"]):
        return
    place = store.add("joined", 1)
    members = int(store.get("closed"))
    assert place <= members, f"rank {rank} has place {place} of {members}"


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    host(store) if rank == 0 else join(store, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
