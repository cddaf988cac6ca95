"""Rank 1 gives its optimizer the parameters in another order, and loads a state by number."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Towers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x).sum() + 3 * self.b(x).sum()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Towers())
named = sorted(model.named_parameters(), reverse=dist.get_rank() == 1)
optimizer = torch.optim.SGD([each for _, each in named], lr=0.05, momentum=0.9)
for step in range(4):
    optimizer.zero_grad()
    model(torch.full((1, 4), 0.1 * (dist.get_rank() + step + 1))).backward()
    optimizer.step()
    if step == 1:
        box = [optimizer.state_dict()]
        dist.broadcast_object_list(box, src=0)
        optimizer.load_state_dict(box[0])
