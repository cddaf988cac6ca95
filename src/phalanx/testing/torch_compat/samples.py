"""Data and models that tests of distributed code share, under torch's names."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn


def simple_sparse_reduce_tests(
    rank: int, world_size: int, num_inputs: int = 1
) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Six cases for a sum of sparse tensors: the inputs of this rank and what must come out.
    They have 1 to 3 sparse dimensions, then 1 to 3 dense ones."""
    makers = [partial(_sparse, sparse_dims=dims) for dims in (1, 2, 3)]
    makers += [partial(_sparse, dense_dims=dims) for dims in (1, 2, 3)]
    members = num_inputs * world_size
    cases = []
    for make in makers:
        inputs = [make(num_inputs * rank + each, members) for each in range(num_inputs)]
        total = make(0, members)
        for member in range(1, members):
            total = total + make(member, members)
        cases.append((inputs, [total.clone() for _ in range(num_inputs)]))
    return cases


def _sparse(member: int, members: int, sparse_dims: int = 1, dense_dims: int = 0) -> Any:
    """Ones at 0..member of the first dimension and at 0 of the other sparse ones, so that any
    two members have places in common."""
    indices = torch.zeros(sparse_dims, member + 1, dtype=torch.int64)
    indices[0] = torch.arange(member + 1)
    dense = [2] * dense_dims
    shape = [members, *dense, *[members] * (sparse_dims - 1)]
    ones = torch.ones(member + 1, *dense)
    return torch.sparse_coo_tensor(indices, ones, shape, check_invariants=True)


class SaveForwardInputsModule(nn.Module):
    """A linear layer that notes what it was given, cast to its own dtype on demand."""

    def __init__(
        self, forward_inputs: dict[nn.Module, torch.Tensor], cast_forward_inputs: bool
    ) -> None:
        super().__init__()
        self.l = nn.Linear(100, 100)
        self.forward_inputs = forward_inputs
        self.cast_forward_inputs = cast_forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forward_inputs[self] = x
        given = x.to(self.l.weight.dtype) if self.cast_forward_inputs else x
        return self.l(given)  # type: ignore[no-any-return]


class SaveForwardInputsModel(nn.Module):
    """Two such layers, which note into the same dictionary as the model itself."""

    def __init__(
        self, forward_inputs: dict[nn.Module, torch.Tensor], cast_forward_inputs: bool
    ) -> None:
        super().__init__()
        self.c1 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.c2 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.forward_inputs = forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forward_inputs[self] = x
        return self.c2(self.c1(x))  # type: ignore[no-any-return]
