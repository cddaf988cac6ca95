# ranks: 3
# decides: fault
# kind: rank-failed|deadlock
# lines: 22-23
# minimum: 1
# faults: kill
# report: https://github.com/petabridge/lighthouse/issues/42
# what: all wait for the plan of the leader, who may be killed between its election and the
#     plan
from datetime import timedelta

import torch.distributed as dist


def lead(store, rank, term):
    mine = f"rank {rank}"
    if store.compare_set(f"leader/{term}", "", mine).decode() == mine:
        store.compare_set("plan", "", f"by {rank} in term {term}")


def find_plan(store, rank):
    lead(store, rank, term=0)
    store.wait(["plan"], timedelta(seconds=0.5))
    return store.get("plan").decode()


def main():
    store, rank, _ = next(dist.rendezvous("env://"))
    plan = find_plan(store, rank)
    assert plan.startswith("by "), plan


if __name__ == "__main__":
    main()
