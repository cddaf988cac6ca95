"""Each rank leaves another part of the model unused, and one part nobody uses."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.spare = (torch.nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.left if dist.get_rank() == 0 else self.right)(x)


dist.init_process_group("gloo")
model = DistributedDataParallel(Net())
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
