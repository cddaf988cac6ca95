# ranks: 2
# decides: fault
# kind: none
# lines: none
# minimum: none
# faults: kill
# report: https://github.com/elizaOS/eliza/pull/23842
# what: a lock whose holder shows no sign of life is taken over, and what is written under
#     it is compared with what was read
import time

import torch.distributed as dist

STALE = 0.03


def acquire(store, me):
    expected, since = "", time.monotonic()
    for turn in range(60):
        mine = f"{me} {turn}"
        held = store.compare_set("lock", expected, mine).decode()
        if held == mine:
            return
        if held == "free":
            expected = held
            continue
        if time.monotonic() - since > STALE:
            expected, since = held, time.monotonic()
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
