# ranks: 3
# decides: order
# kind: rank-failed
# lines: 17-19,22-23
# minimum: 1
# report: https://github.com/devsisters/checkpoint/pull/14
# what: a rank that waited for the lock goes on when it is released without taking it, and
#     so do all that waited
import torch.distributed as dist


class StoreLock:
    def __init__(self, store, rank):
        self.store, self.me = store, str(rank)

    def __enter__(self):
        held = self.store.compare_set("lock", "", self.me)
        if held.decode() != self.me:
            self.store.wait(["released"])

    def __exit__(self, *error):
        self.store.delete_key("lock")
        self.store.set("released", "1")


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        store.set("total", "0")
    dist.barrier()
    with StoreLock(store, rank):
        total = int(store.get("total"))
        store.set("total", str(total + rank + 1))
    dist.barrier()
    total = int(store.get("total"))
    assert total == world * (world + 1) // 2, f"the total is {total}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
