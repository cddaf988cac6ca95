# ranks: 3
# kind: mismatch|deadlock|rank-failed
# faulty: 0
# lines: 24,25,27,34,40,44
# profile: gloo
# what: the context manager gathers error reports only where an error is being handled, so rank 0 gathers while the others wait in the broadcast
import os

import torch.distributed as dist

RAW = {0: "hidden=32;layer=2", 1: "hidden=32;layers=2", 2: "hidden=32;layers=2"}


class error_report:
    """Turn an error in the block into a list of errors known to all ranks."""

    def __init__(self):
        self.errors = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, tb):
        if kind is None:
            return False
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, repr(value))
        self.errors = [e for e in found if e]
        return True


def parse(text):
    items = dict(kv.split("=") for kv in text.split(";"))
    return {"hidden": int(items["hidden"]), "layers": int(items["layers"])}


def load_config(rank):
    cfg = {"hidden": 8, "layers": 1}
    with error_report() as report:
        cfg = parse(RAW[rank])
    if report.errors:
        cfg = {"hidden": 8, "layers": 1}
    box = [cfg if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


dist.init_process_group(backend="gloo")
me = int(os.environ["RANK"])
config = load_config(me)
print(f"rank {me}: {config}")
dist.destroy_process_group()
