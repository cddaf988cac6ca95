# ranks: 3
# decides: order
# kind: mismatch|deadlock|rank-failed
# lines: 14-16
# minimum: 1
# report: https://github.com/SandeepVashishtha/Eventra/pull/16182
# what: each rank looks whether there is a leader and then writes itself, so two can both
#     find none and believe in different leaders
import torch
import torch.distributed as dist


def elect(store, rank):
    if not store.check(["leader"]):
        store.set("leader", str(rank))
    return int(store.get("leader"))


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    leader = elect(store, rank)
    plan = torch.tensor([7.0 if rank == leader else 0.0])
    dist.broadcast(plan, src=leader)
    assert plan.item() == 7.0, f"rank {rank} follows {leader} and has no plan"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
