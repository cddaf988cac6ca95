# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: the process group is destroyed and initialised a second time with a file store
import os
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ws = dist.get_rank(), dist.get_world_size()
name = [None]
if rank == 0:
    name = [os.path.join(tempfile.mkdtemp(), "store")]
dist.broadcast_object_list(name, src=0)
dist.barrier()
dist.destroy_process_group()
assert not dist.is_initialized()
dist.init_process_group("gloo", init_method="file://" + name[0], rank=rank, world_size=ws)
t = torch.ones(2)
dist.all_reduce(t)
assert t[0] == ws
dist.barrier()
dist.destroy_process_group()
