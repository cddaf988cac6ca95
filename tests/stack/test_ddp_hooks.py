"""Communication hooks of DistributedDataParallel, and optimisers that step in backward.

No annotations as text here: DDP reads those of hooks.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import mse_loss

import phalanx
from tests.stack.training import (
    DDP,
    SCHEDULES,
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

# isort: split
# after the module above, which imports these without their warnings
from torch.distributed.algorithms.ddp_comm_hooks import (
    DDPCommHookType,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
    register_ddp_comm_hook,
)
from torch.distributed.optim import _apply_optimizer_in_backward

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[Tensor]]


def _mean_with_then(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] / dist.get_world_size())


def _mean_before(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The division comes first, so the future of the work is the answer as it is."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(buffer, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _mean_synchronously(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    buffer = bucket.buffer()
    dist.all_reduce(buffer)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(buffer / dist.get_world_size())
    return done


def _mean_by_gather(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Two collectives, the second started in a callback of the first."""
    buffer, size = bucket.buffer(), dist.get_world_size()
    parts = [torch.empty_like(buffer) for _ in range(size)]
    gathered = dist.all_gather(parts, buffer, async_op=True).get_future()

    def check_in(done: Any) -> Tensor:
        total = torch.stack(parts).sum(0)
        again = total.clone()
        dist.all_reduce(again)
        return again / size**2

    return gathered.then(check_in)


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize(
    "hook",
    [
        _mean_with_then,
        _mean_before,
        _mean_synchronously,
        _mean_by_gather,
        default_hooks.allreduce_hook,
    ],
)
def test_hooks_that_lose_nothing(hook: Hook, views: bool, seed: int) -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make(), gradient_as_bucket_view=views, bucket_cap_mb=1e-6)
        state = None if hook is default_hooks.allreduce_hook else object()
        model.register_comm_hook(state, hook)
        train(model, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=3, seed=seed), trained_alone())


def test_a_hook_sees_every_bucket_once_and_in_order() -> None:
    def program() -> list[tuple[int, bool, int]]:
        seen: list[tuple[int, bool, int]] = []

        def note(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            sizes = sum(p.numel() for p in bucket.parameters())
            assert (
                sizes == sum(g.numel() for g in bucket.gradients()) == bucket.buffer().numel()
            )
            seen.append((bucket.index(), bucket.is_last(), sizes))
            return _mean_with_then(state, bucket)

        model = DDP(make(), bucket_cap_mb=1e-6)
        model.register_comm_hook(None, note)
        train(model, sgd(model.parameters()), steps=[0])  # buckets are made anew after it
        seen.clear()
        train(model, sgd(model.parameters()), steps=[1])
        return seen

    found = phalanx.run(program, ranks=3)
    numbers = [index for index, _, _ in found[0]]
    assert numbers == sorted(set(numbers))
    assert [last for _, last, _ in found[0]] == [False] * (len(found[0]) - 1) + [True]
    assert sum(size for _, _, size in found[0]) == sum(p.numel() for p in make().parameters())
    assert found[1] == found[2] == found[0]


@pytest.mark.parametrize(
    "hook",
    [
        default_hooks.fp16_compress_hook,
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    ],
)
def test_compression(hook: Hook) -> None:
    """Each gradient is rounded to half, divided, and added up in half precision."""
    kind = torch.float16

    def gradients(inputs: Tensor, targets: Tensor, model: Any) -> dict[str, Tensor]:
        mse_loss(model(inputs), targets).backward()
        return {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}

    def program() -> dict[str, Tensor]:
        model = DDP(make())
        model.register_comm_hook(None, hook)
        return gradients(*shared_batch(0), model)

    inputs, targets = batch(0)
    found = phalanx.run(program, ranks=2)
    each = [
        gradients(x, y, make()) for x, y in zip(inputs.chunk(2), targets.chunk(2), strict=True)
    ]
    wanted = {
        name: (each[0][name].to(kind).div(2) + each[1][name].to(kind).div(2)).double()
        for name in each[0]
    }
    assert_same(found, wanted, tolerance=torch.finfo(kind).eps * 2)
    assert all(torch.equal(found[0][name], found[1][name]) for name in wanted)
    exact = {name: (each[0][name] + each[1][name]) / 2 for name in wanted}
    assert any(not torch.equal(found[0][name], exact[name]) for name in wanted)


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("warm_start", [True, False])
def test_power_sgd_of_full_rank_is_exact(warm_start: bool, seed: int) -> None:
    """With a matrix rank as large as the matrices nothing is lost, and error feedback has
    nothing to add; the communication is two all_reduces from callbacks all the same."""

    def program() -> dict[str, Tensor]:
        model = DDP(make())
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=16,
            start_powerSGD_iter=2,
            min_compression_rate=0.01,
            warm_start=warm_start,
            use_error_feedback=True,
            orthogonalization_epsilon=0,
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(model, sgd(model.parameters()), steps=range(4))
        return weights(model)

    found = phalanx.run(program, ranks=2, seed=seed)
    assert_same(found[1:], found[0], tolerance=0)
    assert_same(found, trained_alone(steps=4), tolerance=1e-6)


def test_power_sgd_of_low_rank_stays_equal_on_all_ranks() -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make(), bucket_cap_mb=1e-6)
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=1,
            start_powerSGD_iter=2,
            min_compression_rate=0.5,
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(model, sgd(model.parameters()), steps=range(6))
        return weights(model)

    found = phalanx.run(program, ranks=3)
    assert_same(found[1:], found[0], tolerance=0)
    exact = trained_alone(steps=6)
    assert not torch.allclose(found[0]["first.weight"], exact["first.weight"], atol=1e-9)


def test_bf16_compression_is_refused_without_nccl() -> None:
    def program() -> None:
        DDP(make()).register_comm_hook(None, default_hooks.bf16_compress_hook)

    with pytest.raises(phalanx.RankFailedError, match="BF16 all reduce communication hook"):
        phalanx.run(program, ranks=2)


ON_CPU = [
    kind
    for kind in DDPCommHookType
    if not kind.name.startswith(("BF16", "QUANTIZE"))  # see the tests above and below
]


@pytest.mark.parametrize("kind", ON_CPU, ids=lambda kind: kind.name)
def test_every_hook_by_its_type(kind: DDPCommHookType) -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make().float())
        register_ddp_comm_hook(kind, model, None)
        inputs, targets = shared_batch(0)
        mse_loss(model(inputs.float()), targets.float()).backward()
        return {name: p.grad for name, p in model.module.named_parameters()}

    found = phalanx.run(program, ranks=2)
    inputs, targets = batch(0)
    model = make()
    if kind is DDPCommHookType.NOOP:  # each rank keeps its own
        inputs, targets = inputs.chunk(2)[1], targets.chunk(2)[1]
        found = found[1:]
    mse_loss(model(inputs), targets).backward()
    assert_same(
        found,
        {name: p.grad.float() for name, p in model.named_parameters()},
        tolerance=2e-3 if kind is DDPCommHookType.FP16_COMPRESS else 1e-6,
    )


@pytest.mark.parametrize(
    "hook",
    [
        quantization_hooks.quantization_pertensor_hook,
        quantization_hooks.quantization_perchannel_hook,
    ],
)
def test_quantization_hooks_fail_as_on_gloo(hook: Hook) -> None:
    """They take the future of an all_gather for a list of lists; Gloo's is a flat list."""

    def program() -> None:
        model = DDP(make().float())
        model.register_comm_hook(dist.group.WORLD, hook)
        inputs, targets = shared_batch(0)
        mse_loss(model(inputs.float()), targets.float()).backward()

    with pytest.raises(phalanx.RankFailedError, match=r"invalid index|too many indices"):
        phalanx.run(program, ranks=2)


def test_post_local_sgd_hook_averages_in_the_subgroup_only() -> None:
    """Globally up to and including the second step, then in pairs."""

    def program() -> list[Tensor]:
        pairs, _ = dist.new_subgroups(2)
        model = DDP(make())
        state = post_localSGD_hook.PostLocalSGDState(
            process_group=None, subgroup=pairs, start_localSGD_iter=2
        )
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        seen = []
        for step in range(3):
            inputs, targets = shared_batch(step)
            model.zero_grad()
            mse_loss(model(inputs), targets).backward()
            seen.append(model.module.first.weight.grad.clone())
        return seen

    def wanted(step: int, part: slice) -> Tensor:
        model = make()
        inputs, targets = batch(step)
        mse_loss(model(inputs[part]), targets[part]).backward()
        result: Tensor = model.first.weight.grad
        return result

    found = phalanx.run(program, ranks=4)
    for rank, seen in enumerate(found):
        half = slice(0, 12) if rank < 2 else slice(12, 24)
        for step, part in enumerate([slice(None), slice(None), half]):
            torch.testing.assert_close(seen[step], wanted(step, part), atol=1e-12, rtol=0)


def test_optimizer_in_backward_needs_an_accelerator() -> None:
    """torch 2.13 makes a stream for it and finds no device to make it on, Gloo or not."""

    def program() -> None:
        model = make()
        _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
        wrapped = DDP(model)
        inputs, targets = shared_batch(0)
        mse_loss(wrapped(inputs), targets).backward()

    if torch.accelerator.is_available():
        pytest.skip("there is one; tests/device is for that")
    with pytest.raises(phalanx.RankFailedError, match="when none is available"):
        phalanx.run(program, ranks=2)


# torch's about its own functional optimisers
@pytest.mark.filterwarnings("ignore:`TorchScript` support for functional optimizers")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_fused_optimizer() -> None:
    """`_register_fused_optim`: a functional optimiser steps in the hook, bucket by bucket."""

    def plain(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def program() -> dict[str, Tensor]:
        model = DDP(make())
        model._register_fused_optim(torch.optim.SGD, lr=0.1)
        for step in range(3):
            inputs, targets = shared_batch(step)
            model.zero_grad()
            mse_loss(model(inputs), targets).backward()
        return weights(model)

    assert_same(phalanx.run(program, ranks=3), trained_alone(optimizer=plain))


def test_an_error_in_a_hook_reaches_its_rank() -> None:
    def program() -> None:
        def fail(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            work = dist.all_reduce(bucket.buffer(), async_op=True)

            def burst(done: Any) -> Tensor:
                raise ZeroDivisionError("hook of " + str(dist.get_rank()))

            return work.get_future().then(burst)

        model = DDP(make())
        model.register_comm_hook(None, fail)
        inputs, targets = share(batch(0)[0]), share(batch(0)[1])
        mse_loss(model(inputs), targets).backward()

    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(program, ranks=2)
    for rank, error in caught.value.failures.items():
        assert isinstance(error, RuntimeError)
        assert f"callback: ZeroDivisionError: hook of {rank}" in str(error)
