# ranks: 3
# decides: order
# kind: mismatch|deadlock|rank-failed
# lines: 14-15
# minimum: 1
# report: https://github.com/firedrakeproject/firedrake/pull/4042
# what: each rank looks into the cache by itself; the last one has filled it when a late rank
#     looks, which then leaves the broadcast out
import torch
import torch.distributed as dist


def vocabulary(store, rank, owner):
    if store.check(["vocabulary"]):
        return int(store.get("vocabulary"))
    size = torch.tensor([32000.0 if rank == owner else 0.0])
    if rank == owner:
        store.set("vocabulary", str(int(size.item())))
    dist.broadcast(size, src=owner)
    return int(size.item())


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    size = vocabulary(store, dist.get_rank(), owner=dist.get_world_size() - 1)
    assert size == 32000, f"{size} words"
    total = torch.tensor([1.0])
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size(), f"{total.item()} ranks"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
