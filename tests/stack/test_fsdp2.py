"""`fully_shard`: training equals one process, whatever is sharded where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import phalanx
from tests.stack.training import (
    SCHEDULES,
    Net,
    assert_same,
    batch,
    make,
    sgd,
    share,
    shared_batch,
    train,
    trained_alone,
    weights,
)


def sharded(model: nn.Module, mesh: DeviceMesh | None = None, **options: Any) -> Any:
    """Each layer a unit, and the rest one more."""
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.children():
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@pytest.mark.parametrize("reshard", [True, False, 2])
@pytest.mark.parametrize("seed", SCHEDULES)
def test_resharding_after_forward(reshard: bool | int, seed: int) -> None:
    """2: to groups of two, less than the whole world."""

    def program() -> dict[str, Tensor]:
        model = sharded(make(), reshard_after_forward=reshard)
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=4, seed=seed), trained_alone())


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_world_sizes(ranks: int) -> None:
    """Shards of 10 and 4 rows over 3 or 8 ranks are uneven, and some are empty."""

    def program() -> dict[str, Tensor]:
        model = sharded(make())
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=ranks), trained_alone())


def test_one_unit_around_everything() -> None:
    def program() -> dict[str, Tensor]:
        model = make()
        fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
        assert isinstance(model, FSDPModule)
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=3), trained_alone())


def test_hybrid_sharding() -> None:
    def program() -> dict[str, Tensor]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = sharded(make(), mesh)
        assert model.first.weight.placements == (Replicate(), Shard(0))
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=4), trained_alone())


# torch's, about in-place operations on what a layer returns; there are none here
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_with_tensor_parallel() -> None:
    """Two by two: rows of the batch over one dimension, the layers over the other."""

    def program() -> dict[str, Tensor]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        model = sharded(parallelize_module(make(), mesh["tensor"], plan), mesh["data"])
        group = mesh["data"].get_group()

        def part(step: int) -> tuple[Tensor, Tensor]:
            inputs, targets = batch(step)
            return share(inputs, group), share(targets, group)

        train(model, sgd(model.parameters()), data=part)
        return weights(model)

    assert_same(phalanx.run(program, ranks=4), trained_alone())


def test_gradient_clipping() -> None:
    def step(model: Any, inputs: Tensor, targets: Tensor) -> tuple[Any, dict[str, Tensor]]:
        optimizer = sgd(model.parameters())
        mse_loss(model(inputs), targets).backward()
        norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        return norm.full_tensor() if isinstance(norm, DTensor) else norm, weights(model)

    def program() -> tuple[Any, dict[str, Tensor]]:
        return step(sharded(make()), *shared_batch(0))

    norm, wanted = step(make(), *batch(0))
    found = phalanx.run(program, ranks=3)
    for got, _ in found:
        torch.testing.assert_close(got, norm, atol=1e-12, rtol=0)
    assert_same([got for _, got in found], wanted)


def test_mixed_precision() -> None:
    def program() -> dict[str, Tensor]:
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
        model = sharded(make().float(), mp_policy=policy)
        seen = []
        model.first.register_forward_pre_hook(
            lambda module, args: seen.append(module.weight.dtype)
        )
        inputs, targets = shared_batch(0)
        out = model(inputs.float())
        assert out.dtype == torch.float32 and seen == [torch.bfloat16]
        mse_loss(out, targets.float()).backward()
        assert model.first.weight.grad.dtype == torch.float32
        sgd(model.parameters()).step()
        return weights(model)

    model = make().float()
    inputs, targets = batch(0)
    mse_loss(model(inputs.float()), targets.float()).backward()
    sgd(model.parameters()).step()
    found = phalanx.run(program, ranks=2)
    assert_same(found[1:], found[0], tolerance=0)
    assert_same(found, weights(model), tolerance=2e-3)


def test_cpu_offload() -> None:
    def program() -> dict[str, Tensor]:
        model = sharded(make(), offload_policy=CPUOffloadPolicy(pin_memory=False))
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=2), trained_alone())


@pytest.mark.parametrize("reduce_in_between", [False, True])
def test_gradient_accumulation(reduce_in_between: bool) -> None:
    def program() -> dict[str, Tensor]:
        model = sharded(make())
        optimizer = sgd(model.parameters())
        for step in range(3):
            model.set_requires_gradient_sync(reduce_in_between or step == 2)
            model.set_is_last_backward(step == 2)
            inputs, targets = shared_batch(step)
            mse_loss(model(inputs), targets).backward()
        optimizer.step()
        return weights(model)

    model = make()
    optimizer = sgd(model.parameters())
    for step in range(3):
        inputs, targets = batch(step)
        mse_loss(model(inputs), targets).backward()
    optimizer.step()
    assert_same(phalanx.run(program, ranks=3), weights(model))


def test_explicit_prefetch_and_unshard() -> None:
    def program() -> dict[str, Tensor]:
        model = sharded(make())
        model.set_modules_to_forward_prefetch([model.first])
        model.first.set_modules_to_forward_prefetch([model.second])
        model.second.set_modules_to_backward_prefetch([model.first])
        handle = model.unshard(async_op=True)
        handle.wait()
        model.reshard()
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=3), trained_alone())


@pytest.mark.parametrize("factor", [1.0, 6.0])
def test_gradient_divide_factor(factor: float) -> None:
    """Gradients are sums divided by the factor."""

    def program() -> dict[str, Tensor]:
        model = sharded(make())
        for unit in (model.first, model.second, model):
            unit.set_gradient_divide_factor(factor)
        inputs, targets = shared_batch(0)
        mse_loss(model(inputs), targets).backward()
        return {name: p.grad.full_tensor() for name, p in model.named_parameters()}

    model = make()
    inputs, targets = batch(0)
    mse_loss(model(inputs), targets).backward()
    wanted = {name: p.grad * 3 / factor for name, p in model.named_parameters()}
    assert_same(phalanx.run(program, ranks=3), wanted)


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.first, x, use_reentrant=False)
        result: Tensor = self.second(torch.tanh(hidden))
        return result


def test_activation_checkpointing() -> None:
    def program() -> dict[str, Tensor]:
        model = sharded(make(Checkpointed))
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=2), trained_alone())


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


@pytest.mark.parametrize("full", [False, True])
def test_state_dicts_go_on_where_they_were(full: bool) -> None:
    """Full ones travel through rank 0 alone, as they would through a file."""
    saving = StateDictOptions(full_state_dict=full, cpu_offload=full)
    loading = StateDictOptions(full_state_dict=full, broadcast_from_rank0=full)

    def program() -> dict[str, Tensor]:
        model = sharded(make())
        optimizer = adam(model.parameters())
        train(model, optimizer, steps=range(2))
        state = get_model_state_dict(model, options=saving)
        moments = get_optimizer_state_dict(model, optimizer, options=saving)
        if full:
            assert bool(state) == (dist.get_rank() == 0)
        again = sharded(make(seed=9))
        other = adam(again.parameters())
        set_model_state_dict(again, state, options=loading)
        set_optimizer_state_dict(again, other, moments, options=loading)
        train(again, other, steps=range(2, 4))
        return weights(again)

    assert_same(phalanx.run(program, ranks=3), trained_alone(optimizer=adam, steps=4))


def test_built_on_meta_and_filled_later() -> None:
    def program() -> dict[str, Tensor]:
        with torch.device("meta"):
            model = Net().double()
        model = sharded(model)
        model.to_empty(device="cpu")
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        given = weights(make()) if dist.get_rank() == 0 else {}
        set_model_state_dict(model, given, options=options)
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=3), trained_alone())


def test_shard_placement_by_function() -> None:
    def program(place: Callable[[nn.Parameter], Shard | None]) -> dict[str, Tensor]:
        model = sharded(make(), shard_placement_fn=place)
        assert model.first.weight.placements == (Shard(1),)
        train(model, sgd(model.parameters()))
        return weights(model)

    def columns(parameter: nn.Parameter) -> Shard | None:
        return Shard(1) if parameter.dim() == 2 else None

    assert_same(phalanx.run(program, columns, ranks=2), trained_alone())
