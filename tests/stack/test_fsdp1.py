"""FullyShardedDataParallel (the first one) on the CPU: training equals one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.functional import mse_loss

import phalanx
from tests.stack.training import (
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

# torch's own, a dozen of them: FSDP1 is on its way out and says so at every door
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def wrapped(model: nn.Module, **options: Any) -> Any:
    """Each layer a unit of its own."""
    options.setdefault("auto_wrap_policy", ModuleWrapPolicy({nn.Linear}))
    options.setdefault("device_id", torch.device("cpu"))
    return FullyShardedDataParallel(model, **options)


def whole(model: Any) -> dict[str, Tensor]:
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return {
            name.replace("_fsdp_wrapped_module.", ""): value.detach().clone()
            for name, value in model.named_parameters()
        }


@pytest.mark.parametrize("orig", [False, True])
@pytest.mark.parametrize(
    "strategy",
    [
        ShardingStrategy.FULL_SHARD,
        ShardingStrategy.SHARD_GRAD_OP,
        ShardingStrategy.NO_SHARD,
    ],
    ids=lambda strategy: strategy.name,
)
@pytest.mark.parametrize("seed", SCHEDULES)
def test_sharding_strategies(strategy: ShardingStrategy, orig: bool, seed: int) -> None:
    def program() -> dict[str, Tensor]:
        model = wrapped(make(), sharding_strategy=strategy, use_orig_params=orig)
        train(model, sgd(model.parameters()))
        return whole(model)

    assert_same(phalanx.run(program, ranks=3, seed=seed), trained_alone())


@pytest.mark.parametrize(
    "strategy",
    [ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2],
    ids=lambda strategy: strategy.name,
)
def test_hybrid_sharding(strategy: ShardingStrategy) -> None:
    def program() -> dict[str, Tensor]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = wrapped(make(), sharding_strategy=strategy, device_mesh=mesh)
        train(model, sgd(model.parameters()))
        return whole(model)

    assert_same(phalanx.run(program, ranks=4), trained_alone())


@pytest.mark.parametrize("prefetch", [None, *BackwardPrefetch])
@pytest.mark.parametrize("forward_prefetch", [False, True])
def test_prefetching(prefetch: BackwardPrefetch | None, forward_prefetch: bool) -> None:
    def program() -> dict[str, Tensor]:
        model = wrapped(make(), backward_prefetch=prefetch, forward_prefetch=forward_prefetch)
        train(model, sgd(model.parameters()))
        return whole(model)

    assert_same(phalanx.run(program, ranks=2), trained_alone())


def _with_sync_module_states() -> None:
    wrapped(make(), sync_module_states=True)


def _with_offload() -> None:
    model = wrapped(make(), cpu_offload=CPUOffload(offload_params=True))
    train(model, sgd(model.parameters()))


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (_with_sync_module_states, "requires them to be on GPU"),
        (_with_offload, "Cannot access accelerator device when none is available"),
    ],
)
def test_what_torch_has_on_accelerators_only(program: Any, text: str) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is one; tests/device is for that")
    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(program, ranks=2)
    assert all(text in str(error) for error in caught.value.failures.values())


def test_no_sync_accumulation() -> None:
    def program() -> dict[str, Tensor]:
        model = wrapped(make())
        optimizer = sgd(model.parameters())
        with model.no_sync():
            inputs, targets = shared_batch(0)
            mse_loss(model(inputs), targets).backward()
        inputs, targets = shared_batch(1)
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
        return whole(model)

    model = make()
    optimizer = sgd(model.parameters())
    for step in range(2):
        inputs, targets = batch(step)
        mse_loss(model(inputs), targets).backward()
    optimizer.step()
    assert_same(phalanx.run(program, ranks=3), weights(model))


@pytest.mark.parametrize("kind", [2.0, 1.0, float("inf")])
def test_clip_grad_norm(kind: float) -> None:
    """In float32: torch computes the norm in that type and refuses to narrow float64."""

    def program() -> tuple[float, dict[str, Tensor]]:
        model = wrapped(make().float())
        optimizer = sgd(model.parameters())
        inputs, targets = shared_batch(0)
        mse_loss(model(inputs.float()), targets.float()).backward()
        norm = model.clip_grad_norm_(0.05, norm_type=kind)
        optimizer.step()
        return norm.item(), whole(model)

    model = make().float()
    optimizer = sgd(model.parameters())
    inputs, targets = batch(0)
    mse_loss(model(inputs.float()), targets.float()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05, norm_type=kind).item()
    optimizer.step()
    found = phalanx.run(program, ranks=3)
    assert [got for got, _ in found] == [pytest.approx(norm, abs=1e-6)] * 3
    assert_same([got for _, got in found], weights(model), tolerance=1e-6)


def test_mixed_precision() -> None:
    """Parameters and gradients travel in bfloat16; all ranks agree, near the exact ones."""

    def program() -> dict[str, Tensor]:
        half = torch.bfloat16
        precision = MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=half)
        seen = []
        model = wrapped(make().float(), mixed_precision=precision)
        for unit in model.modules():
            if isinstance(unit, nn.Linear):
                unit.register_forward_pre_hook(lambda m, args: seen.append(args[0].dtype))
        inputs, targets = shared_batch(0)
        mse_loss(model(inputs.float()).float(), targets.float()).backward()
        sgd(model.parameters()).step()
        assert seen == [half, half]
        return whole(model)

    model = make().float()
    inputs, targets = batch(0)
    mse_loss(model(inputs.float()), targets.float()).backward()
    sgd(model.parameters()).step()
    found = phalanx.run(program, ranks=2)
    assert_same(found[1:], found[0], tolerance=0)
    assert_same(found, weights(model), tolerance=2e-3)


@pytest.mark.parametrize("kind", list(StateDictType), ids=lambda kind: kind.name)
def test_state_dicts_go_on_where_they_were(kind: StateDictType) -> None:
    """Model and optimiser saved after two steps, loaded into a new model, two steps more.
    One state per parameter: with Adam's two, torch 2.13 hands out a mixed-up full state on
    the CPU, Gloo or not."""
    configs: dict[StateDictType, tuple[Any, Any]] = {
        StateDictType.FULL_STATE_DICT: (
            FullStateDictConfig(rank0_only=False),
            FullOptimStateDictConfig(rank0_only=False),
        ),
        StateDictType.SHARDED_STATE_DICT: (
            ShardedStateDictConfig(),
            ShardedOptimStateDictConfig(),
        ),
    }
    fsdp = FullyShardedDataParallel

    def program() -> dict[str, Tensor]:
        model = wrapped(make(), use_orig_params=kind is not StateDictType.LOCAL_STATE_DICT)
        optimizer = sgd(model.parameters())
        train(model, optimizer, steps=range(2))
        again = wrapped(
            make(seed=9), use_orig_params=kind is not StateDictType.LOCAL_STATE_DICT
        )
        other = sgd(again.parameters())
        if kind is StateDictType.LOCAL_STATE_DICT:
            with fsdp.state_dict_type(model, kind):
                state = model.state_dict()
            with fsdp.state_dict_type(again, kind):
                again.load_state_dict(state)
            other.load_state_dict(optimizer.state_dict())
        else:
            with fsdp.state_dict_type(model, kind, *configs[kind]):
                state, moments = model.state_dict(), fsdp.optim_state_dict(model, optimizer)
            with fsdp.state_dict_type(again, kind, *configs[kind]):
                again.load_state_dict(state)
                other.load_state_dict(fsdp.optim_state_dict_to_load(again, other, moments))
        train(again, other, steps=range(2, 4))
        return whole(again)

    assert_same(phalanx.run(program, ranks=2), trained_alone(steps=4))


def test_full_state_dict_on_rank_0_only() -> None:
    def program() -> dict[str, Tensor]:
        model = wrapped(make())
        config = FullStateDictConfig(rank0_only=True)
        fsdp = FullyShardedDataParallel
        with fsdp.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
            state: dict[str, Tensor] = model.state_dict()
            return state

    found = phalanx.run(program, ranks=3)
    assert_same(found[:1], weights(make()))
    assert found[1] == found[2] == {}
