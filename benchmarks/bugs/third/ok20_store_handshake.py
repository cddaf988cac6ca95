# ranks: 3
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: store used as a mailbox: set before wait/get, unique keys, counter only compared when everyone has added
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore
from torch.distributed import distributed_c10d as c10d

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
store = PrefixStore("mail", c10d._get_default_store())
store.set(f"from{rank}", str(rank * 10))
store.wait([f"from{r}" for r in range(ws)])
vals = [int(store.get(f"from{r}")) for r in range(ws)]
assert vals == [0, 10, 20]
store.add("n", 1)
dist.barrier()
assert store.add("n", 0) == ws
dist.barrier()
dist.destroy_process_group()
