# ranks: 2
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/vllm-project/vllm/pull/18506
# what: rank 0 clears the addresses when the others have said that they need them no more
import torch.distributed as dist


def exchange(store, rank, world):
    store.set(f"address/{rank}", f"host{rank}")
    if store.add("arrived", 1) == world:
        store.set("all here", "1")
    store.wait(["all here"])
    found = [store.get(f"address/{peer}").decode() for peer in range(world) if rank]
    if store.add("left", 1) == world:
        store.set("all left", "1")
    if rank == 0:
        store.wait(["all left"])
        for peer in range(world):
            store.delete_key(f"address/{peer}")
    return found


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    found = exchange(store, rank, world)
    assert found == ["host0", "host1"][: world * rank], f"rank {rank} found {found}"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
