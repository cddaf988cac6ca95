# ranks: 3
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/devsisters/checkpoint/pull/14
# what: a lock of tickets: each release lets exactly the next ticket in
import torch.distributed as dist


class StoreLock:
    def __init__(self, store, rank):
        self.store, self.me = store, str(rank)

    def __enter__(self):
        self.ticket = self.store.add("tickets", 1)
        if self.ticket > 1:
            self.store.wait([f"serve/{self.ticket}"])

    def __exit__(self, *error):
        self.store.set(f"serve/{self.ticket + 1}", "1")


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
