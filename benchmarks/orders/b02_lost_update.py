# ranks: 3
# decides: order
# kind: rank-failed
# lines: 15-17,21
# minimum: 1
# report: https://github.com/elizaOS/eliza/pull/23842
# what: the ranks read a dictionary from the store, add their entry and write it back, so
#     that one overwrites the entry of another
import json

import torch.distributed as dist


def report(store, rank, loss):
    losses = json.loads(store.get("losses"))
    losses[rank] = loss
    store.set("losses", json.dumps(losses))


def collect(store, world):
    return list(json.loads(store.get("losses")).values())


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
