# ranks: 3
# decides: fault
# kind: none
# lines: none
# minimum: none
# faults: kill
# report: https://github.com/petabridge/lighthouse/issues/42
# what: who waits too long for the plan begins another term with another leader
import itertools
from datetime import timedelta

import torch.distributed as dist


def lead(store, rank, term):
    mine = f"rank {rank}"
    if store.compare_set(f"leader/{term}", "", mine).decode() == mine:
        store.compare_set("plan", "", f"by {rank} in term {term}")


def find_plan(store, rank):
    for term in itertools.count():
        lead(store, rank, term)
        try:
            store.wait(["plan"], timedelta(seconds=0.02))
            break
        except dist.DistStoreError:
            continue
    return store.get("plan").decode()


def main():
    store, rank, _ = next(dist.rendezvous("env://"))
    plan = find_plan(store, rank)
    assert plan.startswith("by "), plan


if __name__ == "__main__":
    main()
