# ranks: 2
# decides: order
# kind: rank-failed
# lines: 18-21,34
# minimum: 0
# report: https://github.com/MoonshotAI/checkpoint-engine/issues/106
# what: the second use of the barrier finds the key of the first one and lets every rank
#     pass at once, so weights of the wrong version are read
import torch.distributed as dist


class StoreBarrier:
    def __init__(self, store, world):
        self.store, self.world, self.uses = store, world, 0

    def wait(self):
        self.uses += 1
        name = "barrier"
        if self.store.add(f"{name}/count", 1) == self.world:
            self.store.set(f"{name}/last", "1")
        self.store.wait([f"{name}/last"])


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    barrier = StoreBarrier(store, dist.get_world_size())
    for version in (1, 2):
        if rank == 0:
            store.set("weights", str(version))
        barrier.wait()
        found = int(store.get("weights"))
        assert found == version, f"rank {rank} has weights {found} in round {version}"
        barrier.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
