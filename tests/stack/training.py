"""One small model, its data and its training in a single process, for the tests of this folder.

Everything is float64, so that sums in another order stay far below the tolerance. The whole
batch has `ROWS` rows; rank r of n takes the r-th n-th of them, so the mean of the ranks' losses
is the loss of the whole batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

with warnings.catch_warnings():  # torch scripts functions when it imports these
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    import torch.distributed.algorithms.ddp_comm_hooks
    import torch.distributed.optim

ROWS, WIDTH, HIDDEN, OUT = 24, 6, 10, 4
STEPS = 3
TOLERANCE = 1e-12

SCHEDULES = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 5))]
"""Seeds: the usual order of the ranks, and two others by chance."""

Weights = dict[str, Tensor]

DDP = nn.parallel.DistributedDataParallel


class Net(nn.Module):
    """Two layers, no randomness in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.second = nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(torch.tanh(self.first(x)))
        return result


def make(kind: Callable[..., nn.Module] = Net, *args: Any, seed: int = 0) -> Any:
    """A model in float64 that is the same wherever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(*args).double()


def batch(step: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """The whole batch of one step: inputs and targets."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randn(rows, OUT, generator=generator, dtype=torch.float64)
    return inputs, targets


def share(whole: Tensor, group: Any = None) -> Tensor:
    """The calling rank's rows."""
    return whole.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def shared_batch(step: int) -> tuple[Tensor, Tensor]:
    inputs, targets = batch(step)
    return share(inputs), share(targets)


def sgd(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    data: Callable[[int], tuple[Tensor, Tensor]] = shared_batch,
    steps: Iterable[int] = range(STEPS),
) -> None:
    """Plain training, on a rank (its share of the rows) or, with `data=batch`, alone."""
    for step in steps:
        inputs, targets = data(step)
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()


def trained_alone(
    kind: Callable[..., nn.Module] = Net,
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = sgd,
    steps: int = STEPS,
) -> Weights:
    """The weights after training on the whole batch in this process."""
    model = make(kind)
    train(model, optimizer(model.parameters()), data=batch, steps=range(steps))
    return weights(model)


def weights(model: nn.Module) -> Weights:
    """Copies of all parameters and buffers, DTensors put together, wrappers' names removed."""
    found = {}
    for name, value in model.state_dict().items():
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[name.removeprefix("module.")] = value.detach().clone()
    return found


def assert_same(
    every_rank: Iterable[Mapping[str, Any]],
    wanted: Mapping[str, Any],
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """Each rank has exactly these names, with these values."""
    for rank, got in enumerate(every_rank):
        assert got.keys() == wanted.keys(), f"rank {rank}: {sorted(got)} != {sorted(wanted)}"
        for name, value in wanted.items():
            torch.testing.assert_close(
                got[name],
                value,
                atol=tolerance,
                rtol=0,
                msg=lambda text, rank=rank, name=name: f"rank {rank}, {name}: {text}",
            )
