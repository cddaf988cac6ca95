# ranks: 3
# decides: order
# kind: mismatch|deadlock|rank-failed
# lines: 20-23,31
# minimum: 0
# report: https://github.com/meta-pytorch/torchft/pull/71
# what: each rank lists who has joined when it looks, so the ranks of one quorum have
#     different members
import json

import torch
import torch.distributed as dist

LEAST = 2


def join(store, rank, world):
    store.set(f"join/{rank}", "1")
    if store.add("joined", 1) == LEAST:
        there = [peer for peer in range(world) if store.check([f"join/{peer}"])]
        store.set("quorum", json.dumps(there))
    store.wait(["quorum"])
    return [peer for peer in range(world) if store.check([f"join/{peer}"])]


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    members = join(store, rank, dist.get_world_size())
    group = dist.new_group(members)
    if rank in members:
        count = torch.ones(1)
        dist.all_reduce(count, group=group)
        assert count.item() == len(members), f"{count.item():.0f} ranks, not {members}"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
