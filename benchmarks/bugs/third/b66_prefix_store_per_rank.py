# ranks: 3
# kind: deadlock
# faulty: any
# lines: 20,27
# profile: gloo
# what: the PrefixStore is named after the rank, so a key set by rank 0 is never visible to the others: they wait for run1/addr, run2/addr which nobody sets
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore
from torch.distributed import distributed_c10d as c10d


def namespace(rank):
    return PrefixStore(f"run{rank}", c10d._get_default_store())


def rendezvous(store, rank):
    if rank == 0:
        store.set("addr", "10.0.0.1")
    store.wait(["addr"])
    return store.get("addr")


dist.init_process_group("gloo")
rank = dist.get_rank()
rendezvous(namespace(rank), rank)
dist.barrier()
dist.destroy_process_group()
