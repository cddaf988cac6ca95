# ranks: 4
# kind: deadlock|mismatch
# faulty: 3
# lines: 13
# profile: gloo
# what: rank 3 looks up the "dp" group where the others use "tp": rank 2 waits for 3 in its tp group while 3 waits for 1 in the dp group
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def row_parallel(x, mesh, dim):
    dist.all_reduce(x, group=mesh.get_group(dim))
    return x


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
dp, tp = mesh.get_coordinate()
layers = ["tp"] * 3
if dp == tp == 1:
    layers[1] = "dp"
x = torch.ones(4)
for dim in layers:
    row_parallel(x, mesh, dim)
dist.barrier()
dist.destroy_process_group()
