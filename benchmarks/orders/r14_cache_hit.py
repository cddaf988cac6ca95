# ranks: 3
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/firedrakeproject/firedrake/pull/4042
# what: the last rank looks into the cache and tells all whether it was a hit
import torch
import torch.distributed as dist


def vocabulary(store, rank, owner):
    hit = torch.tensor([float(rank == owner and store.check(["vocabulary"]))])
    dist.broadcast(hit, src=owner)
    if hit.item():
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
