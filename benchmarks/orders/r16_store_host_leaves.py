# ranks: 2
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/vllm-project/vllm/pull/18506
# what: rank 0 keeps the store until the others have said that they need it no more
import torch.distributed as dist


def connect(rank, world):
    store, box = None, [None]
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world, True, wait_for_workers=False)
        box = [store.port]
    dist.broadcast_object_list(box, src=0)
    return store or dist.TCPStore("127.0.0.1", box[0], world, False)


def exchange(rank, world):
    store = connect(rank, world)
    store.set(f"address/{rank}", f"host{rank}")
    if store.add("arrived", 1) == world:
        store.set("all here", "1")
    store.wait(["all here"])
    found = [store.get(f"address/{peer}").decode() for peer in range(world) if rank]
    if store.add("left", 1) == world:
        store.set("all left", "1")
    if rank == 0:
        store.wait(["all left"])
    return found


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    found = exchange(rank, world)
    assert found == ["host0", "host1"][: world * rank], f"rank {rank} found {found}"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
