# ranks: 3
# decides: time
# kind: none
# lines: none
# minimum: none
# report: https://github.com/pytorch/pytorch/issues/111646
# what: members and the mark that closes the meeting are one value that compare_set changes
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
    change(store, lambda state: [*state, "closed"])
    store.set("closed", "1")


def join(store, rank):
    time.sleep(0.02 if rank == 2 else 0.005)
    name = f"rank {rank}"
    place = change(store, lambda state: state if "closed" in state else [*state, name])
    store.get("closed")
    members = json.loads(store.get("meeting"))
    assert (name in place) == (name in members), f"{name} is not in {members}"


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    host(store) if rank == 0 else join(store, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
