# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: 2-D mesh; tp all_reduce then dp all_reduce on all ranks, plus a DTensor redistribute
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
t = torch.full((2,), float(rank))
dist.all_reduce(t, group=mesh.get_group("tp"))
dist.all_reduce(t, group=mesh.get_group("dp"))
assert t[0] == 6
d = distribute_tensor(torch.arange(16.0).view(4, 4), mesh, [Shard(0), Shard(1)])
e = d.redistribute(mesh, [Replicate(), Shard(0)])
assert e.full_tensor().sum() == 120
dist.destroy_process_group()
