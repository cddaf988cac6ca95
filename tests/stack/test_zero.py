"""ZeroRedundancyOptimizer: shards, consolidated state, parameter groups, overlap with DDP."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import phalanx
from tests.stack.training import (
    DDP,
    SCHEDULES,
    assert_same,
    batch,
    make,
    sgd,
    shared_batch,
    train,
    trained_alone,
    weights,
)

# isort: split
# after the module above, which imports these without their warnings
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import (
    hook_with_zero_step,
    hook_with_zero_step_interleaved,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_zero_equals_the_plain_optimizer(ranks: int, as_view: bool) -> None:
    """Six ranks for four parameters: the last shards are empty."""

    def program() -> dict[str, Tensor]:
        model = DDP(make())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, parameters_as_bucket_view=as_view, lr=0.01
        )
        train(model, optimizer)
        return weights(model)

    assert_same(phalanx.run(program, ranks=ranks), trained_alone(optimizer=adam))


def test_parameter_groups_and_closure() -> None:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        return [
            {"params": [model.get_parameter("first.weight")], "lr": 0.2},
            {"params": [model.get_parameter("second.weight")]},
        ]

    def fit(model: Any, plain: Any, optimizer: Any, data: Any) -> dict[str, Tensor]:
        optimizer.add_param_group({"params": [plain.first.bias], "lr": 0.05})
        for step in range(3):
            inputs, targets = data(step)

            def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                optimizer.zero_grad()
                loss = mse_loss(model(inputs), targets)
                loss.backward()
                return loss

            optimizer.step(closure)
        return weights(plain)

    def program() -> dict[str, Tensor]:
        plain = make()
        optimizer = ZeroRedundancyOptimizer(groups(plain), torch.optim.SGD, lr=0.1)
        return fit(DDP(plain), plain, optimizer, shared_batch)

    alone = make()
    wanted = fit(alone, alone, torch.optim.SGD(groups(alone), lr=0.1), batch)
    assert_same(phalanx.run(program, ranks=2), wanted)


def test_state_is_consolidated_on_one_rank_and_reloaded_on_all() -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        train(model, optimizer, steps=range(2))
        optimizer.consolidate_state_dict(to=1)
        box = [optimizer.state_dict() if dist.get_rank() == 1 else None]
        dist.broadcast_object_list(box, src=1)
        again = DDP(make(seed=3))
        again.load_state_dict(model.state_dict())
        reloaded = ZeroRedundancyOptimizer(again.parameters(), torch.optim.Adam, lr=0.5)
        reloaded.load_state_dict(box[0])
        train(again, reloaded, steps=range(2, 4))
        return weights(again)

    assert_same(phalanx.run(program, ranks=3), trained_alone(optimizer=adam, steps=4))


def test_state_without_consolidation_is_an_error() -> None:
    def program() -> None:
        ZeroRedundancyOptimizer(make().parameters(), torch.optim.SGD, lr=0.1).state_dict()

    with pytest.raises(phalanx.RankFailedError, match="consolidate_state_dict"):
        phalanx.run(program, ranks=2)


@pytest.mark.parametrize("hook", [hook_with_zero_step, hook_with_zero_step_interleaved])
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("seed", SCHEDULES)
def test_overlap_with_ddp(hook: Any, shard: bool, seed: int) -> None:
    """The optimiser steps in the hook. The first two passes are warm-up and change nothing,
    because DDP makes its buckets anew after the first."""

    def program() -> dict[str, Tensor]:
        model = DDP(make(), bucket_cap_mb=1e-6)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        model.register_comm_hook(
            None, hook(allreduce_hook, model, optimizer, shard_buckets=shard)
        )
        for step in [0, 0, 0, 1, 2]:
            inputs, targets = shared_batch(step)
            model.zero_grad()
            mse_loss(model(inputs), targets).backward()
        model(shared_batch(0)[0])  # a pass more, which waits for the last broadcasts
        return weights(model)

    def plain(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    # torch refuses a group that calls itself Gloo: the hooks may hang there
    found = phalanx.run(program, ranks=2, seed=seed, backend="cpu:gloo,cuda:nccl")
    assert_same(found, trained_alone(optimizer=plain))


def test_overlap_is_refused_by_the_name_of_gloo() -> None:
    """torch has seen real Gloo hang there, so it asks for the name."""

    def program() -> None:
        model = DDP(make())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        hook_with_zero_step(allreduce_hook, model, optimizer)

    with pytest.raises(phalanx.RankFailedError, match="may meet hangs"):
        phalanx.run(program, ranks=2, backend="gloo")


def test_momentum() -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9
        )
        train(model, optimizer)
        return weights(model)

    assert_same(phalanx.run(program, ranks=3), trained_alone(optimizer=sgd))
