# ranks: 3
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/SandeepVashishtha/Eventra/pull/16182
# what: the first compare_set decides who leads, and all read the same name
import torch
import torch.distributed as dist


def elect(store, rank):
    return int(store.compare_set("leader", "", str(rank)))


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
