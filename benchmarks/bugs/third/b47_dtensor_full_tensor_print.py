# ranks: 4
# kind: deadlock|mismatch
# faulty: 0
# lines: 15,27
# profile: gloo
# what: full_tensor() is a collective (all_gather) but is called in the rank-0 logging branch only
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def log(rank, name, t):
    if rank == 0:
        v = t.full_tensor().norm().item()
        print(f"{name}: {v:.3f}")


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
torch.manual_seed(0)
w = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
y = w * 2
log(rank, "y", y)
flag = torch.zeros(1)
dist.all_reduce(flag)
dist.destroy_process_group()
