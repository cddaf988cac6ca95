"""Model averagers (periodic, hierarchical) and PostLocalSGDOptimizer."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch import Tensor
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.nn.functional import mse_loss

import phalanx
from tests.stack.training import assert_same, batch, make, shared_batch, weights

# isort: split
# after the module above, which imports this without its warnings
from torch.distributed.optim import PostLocalSGDOptimizer

# torch's, which would rather see DDP used; the shortest period is the sharpest test
pytestmark = pytest.mark.filterwarnings("ignore:When period is 1")


def plain(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def local_sgd(ranks: int, steps: int, groups_at: Any) -> list[dict[str, Tensor]]:
    """Each rank steps alone; `groups_at(step)` lists who averages with whom after it."""
    models = [make() for _ in range(ranks)]
    optimizers = [plain(model.parameters()) for model in models]
    for step in range(steps):
        inputs, targets = batch(step)
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            mse_loss(model(inputs.chunk(ranks)[rank]), targets.chunk(ranks)[rank]).backward()
            optimizers[rank].step()
        for members in groups_at(step):
            for together in zip(*(models[m].parameters() for m in members), strict=True):
                mean = torch.stack([p.detach() for p in together]).mean(0)
                for parameter in together:
                    parameter.data.copy_(mean)
    return [weights(model) for model in models]


def step_alone(model: Any, optimizer: Any, step: int) -> None:
    inputs, targets = shared_batch(step)
    optimizer.zero_grad()
    mse_loss(model(inputs), targets).backward()
    optimizer.step()


@pytest.mark.parametrize(("period", "warmup"), [(1, 0), (2, 1), (3, 2)])
def test_periodic_averager(period: int, warmup: int) -> None:
    def program() -> dict[str, Tensor]:
        model = make()
        optimizer = plain(model.parameters())
        averager = averagers.PeriodicModelAverager(period=period, warmup_steps=warmup)
        for step in range(6):
            step_alone(model, optimizer, step)
            averager.average_parameters(model.parameters())
        assert averager.step == 6
        return weights(model)

    def groups_at(step: int) -> list[list[int]]:
        return [[0, 1, 2]] if step >= warmup and (step - warmup) % period == 0 else []

    for got, wanted in zip(
        phalanx.run(program, ranks=3), local_sgd(3, 6, groups_at), strict=True
    ):
        assert_same([got], wanted)


def test_averager_in_a_group_and_by_parameter_group() -> None:
    def program() -> dict[str, Tensor]:
        pairs, _ = dist.new_subgroups(2)
        model = make()
        optimizer = plain(model.parameters())
        averager = averagers.PeriodicModelAverager(1, 0, process_group=pairs)
        for step in range(2):
            step_alone(model, optimizer, step)
            averager.average_parameters(optimizer.param_groups)
        return weights(model)

    wanted = local_sgd(4, 2, lambda step: [[0, 1], [2, 3]])
    for got, each in zip(phalanx.run(program, ranks=4), wanted, strict=True):
        assert_same([got], each)


@pytest.mark.parametrize("warmup", [0, 1])
def test_hierarchical_averager(warmup: int) -> None:
    """Pairs every second step, all four every fourth."""

    def program() -> dict[str, Tensor]:
        model = make()
        optimizer = plain(model.parameters())
        averager = HierarchicalModelAverager(
            period_group_size_dict=OrderedDict([(2, 2), (4, 4)]), warmup_steps=warmup
        )
        for step in range(7):
            step_alone(model, optimizer, step)
            averager.average_parameters(model.parameters())
        return weights(model)

    def groups_at(step: int) -> list[list[int]]:
        if step < warmup:
            return []
        if step % 4 == 0:
            return [[0, 1, 2, 3]]
        return [[0, 1], [2, 3]] if step % 2 == 0 else []

    wanted = local_sgd(4, 7, groups_at)
    for got, each in zip(phalanx.run(program, ranks=4), wanted, strict=True):
        assert_same([got], each)


def test_post_local_sgd_optimizer_with_reload() -> None:
    """The averager's step count is part of the state, so a reloaded one goes on in step."""

    def program() -> dict[str, Tensor]:
        def fresh(model: Any) -> Any:
            averager = averagers.PeriodicModelAverager(period=2, warmup_steps=1)
            return PostLocalSGDOptimizer(optim=plain(model.parameters()), averager=averager)

        model = make()
        optimizer = fresh(model)
        for step in range(3):
            step_alone(model, optimizer, step)
        again = make(seed=5)
        again.load_state_dict(model.state_dict())
        reloaded = fresh(again)
        reloaded.load_state_dict(optimizer.state_dict())
        assert reloaded.averager.step == 3
        for step in range(3, 6):
            step_alone(again, reloaded, step)
        return weights(again)

    def groups_at(step: int) -> list[list[int]]:
        return [[0, 1, 2]] if step >= 1 and (step - 1) % 2 == 0 else []

    for got, wanted in zip(
        phalanx.run(program, ranks=3), local_sgd(3, 6, groups_at), strict=True
    ):
        assert_same([got], wanted)
