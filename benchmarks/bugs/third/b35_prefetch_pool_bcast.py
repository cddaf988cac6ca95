# ranks: 3
# kind: thread-race
# faulty: any
# lines: 15
# profile: gloo
# what: shards are broadcast from a pool with two workers on one group; the order in which the two threads issue broadcasts is not fixed
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist


def fetch(shard_id):
    t = torch.full((4,), float(shard_id)) if dist.get_rank() == 0 else torch.empty(4)
    dist.broadcast(t, src=0)
    return t


dist.init_process_group("gloo")
with ThreadPoolExecutor(max_workers=2) as pool:
    shards = list(pool.map(fetch, range(6)))
dist.barrier()
dist.destroy_process_group()
