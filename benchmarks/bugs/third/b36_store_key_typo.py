# ranks: 2
# kind: deadlock
# faulty: any
# lines: 20,30
# profile: gloo
# what: rank 0 publishes "cfg/lr" and "cfg/bs", rank 1 waits for "cfg/batch" which nobody ever sets while rank 0 waits in barrier
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

KEYS = ["lr", "batch"]


def publish(store, cfg):
    for k, v in cfg.items():
        store.set("cfg/" + k, str(v))


def fetch(store):
    return {k: float(store.get("cfg/" + k)) for k in KEYS}


dist.init_process_group("gloo")
store = c10d._get_default_store()
if dist.get_rank() == 0:
    cfg = {"lr": 0.1, "bs": 32}
    publish(store, cfg)
else:
    cfg = fetch(store)
dist.barrier()
dist.destroy_process_group()
