# ranks: 3
# decides: order
# kind: none
# lines: none
# minimum: none
# report: https://github.com/elizaOS/eliza/pull/23842
# what: each rank has a key of its own for its entry
import json

import torch.distributed as dist


def report(store, rank, loss):
    store.set(f"losses/{rank}", json.dumps(loss))


def collect(store, world):
    return [json.loads(store.get(f"losses/{rank}")) for rank in range(world)]


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        store.set("losses", "{}")
    dist.barrier()
    report(store, rank, loss=0.5 * rank)
    dist.barrier()
    if rank == 0:
        found = collect(store, world)
        assert len(found) == world, f"{len(found)} losses of {world} ranks"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
