# ranks: 3
# kind: message-race
# faulty: any
# lines: 16,17
# profile: gloo
# what: ranks 0 and 1 both set "best" and rank 2 reads it without any ordering, so the value depends on who wrote last/first
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

dist.init_process_group("gloo")
store = c10d._get_default_store()
rank = dist.get_rank()
score = [0.3, 0.2, 0.9][rank]
if score < 0.5:
    store.set("best", f"{rank}:{score}")
winner = int(store.get("best").decode().split(":")[0])
t = torch.tensor([winner])
dist.all_reduce(t, op=dist.ReduceOp.MAX)
dist.barrier()
dist.destroy_process_group()
