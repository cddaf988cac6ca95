"""Tensor parallel: one layer's weight split by columns, the next one's by rows.

torchrun --nproc-per-node 4 examples/tensor_parallel.py
phalanx run -n 4 examples/tensor_parallel.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(make_model(), mesh, plan)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    difference = (model(x) - make_model()(x)).abs().max().item()
    print(f"largest difference to the whole model: {difference:.0e}")
    assert difference < 1e-6
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
