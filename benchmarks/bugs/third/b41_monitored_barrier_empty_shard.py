# ranks: 4
# kind: deadlock|mismatch|rank-failed
# faulty: 3
# lines: 17
# profile: gloo
# what: rank 3 has an empty shard and returns before the monitored_barrier the others are in; wanted: rank 3 ended without reaching it
from datetime import timedelta

import torch
import torch.distributed as dist


def process(files):
    if not files:
        return 0
    n = len(files)
    dist.monitored_barrier(timeout=timedelta(seconds=3))
    return n


dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
files = ["a.bin", "b.bin", "c.bin"]
process(files[rank::ws])
dist.destroy_process_group()
