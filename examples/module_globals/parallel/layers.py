"""Linear layers of which each rank has a part, and the two ways through a tensor group."""

import torch
import torch.distributed as dist
from torch import nn

from . import state


class _ToParts(torch.autograd.Function):
    """The whole input for every part; gradients of the parts are added up."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=state.tensor_group())
        return gradient


class _FromParts(torch.autograd.Function):
    """Outputs of the parts are added up; each part gets the whole gradient."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x, group=state.tensor_group())
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ColumnLinear(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        parts = dist.get_world_size(state.tensor_group())
        self.weight = nn.Parameter(weight.chunk(parts, dim=0)[state.tensor_rank()].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(_ToParts.apply(x), self.weight)


class RowLinear(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        parts = dist.get_world_size(state.tensor_group())
        self.weight = nn.Parameter(weight.chunk(parts, dim=1)[state.tensor_rank()].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _FromParts.apply(nn.functional.linear(x, self.weight))
