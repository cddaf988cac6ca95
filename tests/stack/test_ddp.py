"""DistributedDataParallel in its constructor's variants: training equals one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import phalanx
from tests.stack.training import (
    DDP,
    HIDDEN,
    OUT,
    SCHEDULES,
    WIDTH,
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

# torch 2.13's about an option that programs still use
pytestmark = pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated")


def trained(kind: Callable[..., nn.Module] = Net, **options: Any) -> dict[str, Tensor]:
    model = DDP(make(kind), **options)
    train(model, sgd(model.parameters()))
    return weights(model)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ddp_equals_one_process(ranks: int) -> None:
    assert_same(phalanx.run(trained, ranks=ranks), trained_alone())


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"broadcast_buffers": False},
        {"bucket_cap_mb": 1e-6},
        {"bucket_cap_mb": 1e-6, "gradient_as_bucket_view": True},
        {"skip_all_reduce_unused_params": True, "find_unused_parameters": True},
    ],
    ids=lambda options: ",".join(options),
)
def test_ddp_options(options: dict[str, Any], seed: int) -> None:
    assert_same(phalanx.run(trained, ranks=3, seed=seed, **options), trained_alone())


def test_rank_0_gives_its_weights_to_all() -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make(seed=dist.get_rank()))
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=3), trained_alone())


def test_without_init_sync_each_rank_keeps_its_own() -> None:
    def program() -> dict[str, Tensor]:
        return weights(DDP(make(seed=dist.get_rank()), init_sync=False))

    for rank, got in enumerate(phalanx.run(program, ranks=3)):
        assert_same([got], weights(make(seed=rank)))


def test_device_mesh_instead_of_a_group() -> None:
    def program() -> dict[str, Tensor]:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return trained(device_mesh=mesh)

    assert_same(phalanx.run(program, ranks=3), trained_alone())


def test_two_models_in_two_groups() -> None:
    """Each half of the ranks trains a model of its own on the whole batch."""

    def program() -> dict[str, Tensor]:
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        half = dist.get_rank() // 2
        model = DDP(make(seed=half), process_group=halves[half])
        train(model, sgd(model.parameters()), data=lambda step: _part(step, halves[half]))
        return weights(model)

    def _part(step: int, group: Any) -> tuple[Tensor, Tensor]:
        inputs, targets = batch(step)
        return share(inputs, group), share(targets, group)

    found = phalanx.run(program, ranks=4)
    for half in range(2):
        model = make(seed=half)
        train(model, sgd(model.parameters()), data=batch)
        assert_same(found[2 * half : 2 * half + 2], weights(model))


def test_several_models_in_one_backward_pass() -> None:
    def step(first: nn.Module, second: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
        (first(inputs) * second(inputs)).pow(2).mean().backward()
        models = {"first": first, "second": second}
        return {
            f"{which}.{name.removeprefix('module.')}": parameter.grad
            for which, model in models.items()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }

    def program() -> dict[str, Tensor]:
        return step(DDP(make(seed=1)), DDP(make(seed=2)), shared_batch(0)[0])

    wanted = step(make(seed=1), make(seed=2), batch(0)[0])
    assert_same(phalanx.run(program, ranks=4), wanted)


def test_no_sync_accumulates_and_then_averages() -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make())
        optimizer = sgd(model.parameters())
        with model.no_sync():
            for step in range(2):
                inputs, targets = shared_batch(step)
                mse_loss(model(inputs), targets).backward()
        local = model.module.first.weight.grad.clone()
        inputs, targets = shared_batch(2)
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
        return {**weights(model), "local": local}

    model = make()
    optimizer = sgd(model.parameters())
    for step in range(3):
        inputs, targets = batch(step)
        mse_loss(model(inputs), targets).backward()
    optimizer.step()

    found = phalanx.run(program, ranks=4)
    locals_ = [got.pop("local") for got in found]
    assert not torch.equal(locals_[0], locals_[1]), "gradients were exchanged in no_sync"
    assert_same(found, weights(model))


def test_forward_several_times_before_backward() -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make())
        optimizer = sgd(model.parameters())
        inputs, targets = shared_batch(0)
        (mse_loss(model(inputs), targets) + mse_loss(model(2 * inputs), targets)).backward()
        optimizer.step()
        return weights(model)

    model = make()
    optimizer = sgd(model.parameters())
    inputs, targets = batch(0)
    (mse_loss(model(inputs), targets) + mse_loss(model(2 * inputs), targets)).backward()
    optimizer.step()
    assert_same(phalanx.run(program, ranks=3), weights(model))


class Normed(nn.Module):
    """BatchNorm's running statistics are buffers that differ from rank to rank."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.second = nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.norm(self.first(x)))
        return result


def test_buffers_are_rank_0s_before_each_forward() -> None:
    def program(broadcast: bool) -> list[Tensor]:
        model = DDP(make(Normed), broadcast_buffers=broadcast)
        seen = []
        model.module.norm.register_forward_pre_hook(
            lambda module, args: seen.append(module.running_mean.clone())
        )
        train(model, sgd(model.parameters()))
        return seen

    together = phalanx.run(program, True, ranks=3)
    apart = phalanx.run(program, False, ranks=3)
    for before in zip(*together, strict=True):
        assert all(torch.equal(each, before[0]) for each in before)
    assert not torch.equal(apart[0][-1], apart[1][-1])


def test_buffer_hook_replaces_the_broadcast() -> None:
    """A hook that averages the buffers, before and after forward."""
    from torch.nn.parallel.distributed import _BufferCommHookLocation as Location

    def program(location: Any) -> Tensor:
        def average(model: DDP, buffers: dict[str, Tensor]) -> None:
            for name, buffer in buffers.items():
                if name.endswith("running_mean"):
                    dist.all_reduce(buffer)
                    buffer /= dist.get_world_size()

        model = DDP(make(Normed))
        model._register_buffer_comm_hook(model, average, location)
        model.module.norm.running_mean.fill_(float(dist.get_rank()))
        model.eval()
        model(shared_batch(0)[0])
        model.train()
        model(shared_batch(0)[0])
        result: Tensor = model.module.norm.running_mean.clone()
        return result

    after = phalanx.run(program, Location.POST_FORWARD, ranks=3)
    assert all(torch.equal(each, after[0]) for each in after)
    before = phalanx.run(program, Location.PRE_FORWARD, ranks=3)
    assert not torch.equal(before[0], before[1])


def test_frozen_parameters_stay() -> None:
    class Frozen(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first.weight.requires_grad_(False)

    assert_same(phalanx.run(trained, Frozen, ranks=3), trained_alone(Frozen))


def test_ignored_parameters_are_left_alone() -> None:
    def program() -> dict[str, Tensor]:
        model = make(seed=dist.get_rank())
        ignored = ["first.weight", "first.bias"]
        DDP._set_params_and_buffers_to_ignore_for_model(model, ignored)
        wrapped = DDP(model)
        inputs, targets = shared_batch(0)
        mse_loss(wrapped(inputs), targets).backward()
        return {name: p.grad for name, p in model.named_parameters()} | {
            "start": model.first.weight.detach().clone(),
            "given": model.second.weight.detach().clone(),
        }

    found = phalanx.run(program, ranks=3)
    for rank, got in enumerate(found):
        assert torch.equal(got["start"], make(seed=rank).first.weight), "was broadcast"
        assert torch.equal(got["given"], make(seed=0).second.weight), "was not broadcast"
        assert torch.equal(got["second.weight"], found[0]["second.weight"])
    assert not torch.equal(found[0]["first.weight"], found[1]["first.weight"])


def test_delayed_all_reduce() -> None:
    """Parameters named as delayed are reduced after the rest; the result is the same.
    float32, because torch makes the delayed buffer in that type whatever the model's is."""

    def program() -> dict[str, Tensor]:
        model = make().float()
        names = ["second.weight", "second.bias"]
        delayed = [(name, model.get_parameter(name)) for name in names]
        wrapped = DDP(
            model,
            delay_all_reduce_named_params=delayed,
            param_to_hook_all_reduce=model.first.weight,
        )
        inputs, targets = shared_batch(0)
        mse_loss(wrapped(inputs.float()), targets.float()).backward()
        return {name: p.grad for name, p in model.named_parameters()}

    model = make().float()
    inputs, targets = batch(0)
    mse_loss(model(inputs.float()), targets.float()).backward()
    assert_same(
        phalanx.run(program, ranks=3),
        {name: p.grad for name, p in model.named_parameters()},
        tolerance=1e-6,
    )


class Checkpointed(Net):
    """The first layer's activations are computed again in backward."""

    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.first, x, use_reentrant=self.reentrant)
        result: Tensor = self.second(torch.tanh(hidden))
        return result


class Reentrant(Checkpointed):
    reentrant = True

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.requires_grad_())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Checkpointed, {}),
        (Checkpointed, {"find_unused_parameters": True}),
        (Checkpointed, {"static_graph": True}),
        (Reentrant, {}),
        (Reentrant, {"static_graph": True}),
    ],
)
def test_activation_checkpointing(kind: type[nn.Module], options: dict[str, Any]) -> None:
    assert_same(phalanx.run(trained, kind, ranks=3, **options), trained_alone())


class Looked(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(20, OUT, mode="sum", sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.table((x.abs() * 10).long().clamp(max=19))
        return result


def test_sparse_gradients() -> None:
    def plain(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def program() -> dict[str, Tensor]:
        model = DDP(make(Looked))
        train(model, plain(model.parameters()))
        assert model.module.table.weight.grad.is_sparse
        return weights(model)

    assert_same(phalanx.run(program, ranks=3), trained_alone(Looked, plain))
