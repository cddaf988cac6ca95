# ranks: 2
# decides: fault
# kind: rank-failed
# lines: 16-26
# minimum: 1
# faults: kill
# report: https://github.com/elizaOS/eliza/pull/23842
# what: a lock in the store stays locked when its holder is killed
import time

import torch.distributed as dist


def acquire(store, me):
    expected = ""
    for turn in range(60):
        mine = f"{me} {turn}"
        held = store.compare_set("lock", expected, mine).decode()
        if held == mine:
            return
        if held == "free":
            expected = held
            continue
        expected = ""
        time.sleep(0.004)
    raise TimeoutError(f"{me} has waited for the lock of {held}")


def add_one(store, me):
    while True:
        old = store.compare_set("total", "", "0 nobody").decode()
        new = f"{int(old.split()[0]) + 1} {me}"
        if store.compare_set("total", old, new).decode() == new:
            return


def main():
    store, rank, _ = next(dist.rendezvous("env://"))
    me = f"rank{rank}"
    for _ in range(2):
        acquire(store, me)
        add_one(store, me)
        store.set("lock", "free")


if __name__ == "__main__":
    main()
