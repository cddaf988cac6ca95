"""Tensor parallel styles: a model over the ranks equals the model in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

import phalanx
from tests.stack.training import (
    SCHEDULES,
    TOLERANCE,
    assert_same,
    batch,
    make,
    sgd,
    share,
    train,
    trained_alone,
    weights,
)


def world() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("seed", SCHEDULES)
def test_columns_then_rows(ranks: int, seed: int) -> None:
    def program() -> dict[str, Tensor]:
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        model = parallelize_module(make(), world(), plan)
        train(model, sgd(model.parameters()), data=batch)
        return weights(model)

    assert_same(phalanx.run(program, ranks=ranks, seed=seed), trained_alone())


@pytest.mark.parametrize("first", [ColwiseParallel, RowwiseParallel])
def test_one_layer_with_its_output_put_together(first: Any) -> None:
    def program() -> dict[str, Tensor]:
        style = (
            first(output_layouts=Replicate())
            if first is ColwiseParallel
            else first(input_layouts=Replicate())
        )
        model = parallelize_module(make(), world(), {"first": style})
        train(model, sgd(model.parameters()), data=batch)
        return weights(model)

    assert_same(phalanx.run(program, ranks=2), trained_alone())


class Block(nn.Module):
    """What a transformer's layer does with its sequence: norm, attention, norm, two layers."""

    def __init__(self, width: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up = nn.Linear(width, 16)
        self.down = nn.Linear(16, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(x)
        parts = [
            layer(hidden).unflatten(-1, (-1, 2)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(torch.tanh(self.up(self.after(x))))
        return result


def tokens() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, 6, 8, generator=generator, dtype=torch.float64)


def gradients(model: nn.Module, out: Any) -> dict[str, Tensor]:
    out.pow(2).mean().backward()
    found: dict[str, Any] = {name: p.grad for name, p in model.named_parameters()}
    return {
        name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        for name, grad in found.items()
    }


@pytest.mark.parametrize("seed", SCHEDULES)
def test_a_block_with_sequence_parallel(seed: int) -> None:
    """Norms on a share of the sequence, attention and layers on a share of the heads."""

    def program() -> dict[str, Tensor]:
        plan = {
            "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "query": ColwiseParallel(input_layouts=Shard(1)),
            "key": ColwiseParallel(input_layouts=Shard(1)),
            "value": ColwiseParallel(input_layouts=Shard(1)),
            "out": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            "after": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
        model = parallelize_module(make(Block), world(), plan)
        out = model(tokens())
        return {**gradients(model, out), "out": out.full_tensor().detach()}

    model = make(Block)
    out = model(tokens())
    wanted = {**gradients(model, out), "out": out.detach()}
    assert_same(phalanx.run(program, ranks=2, seed=seed), wanted)


@pytest.mark.parametrize("in_one", [False, True])
def test_prepare_input_and_output(in_one: bool) -> None:
    """A layer that itself is plain, fed with shards and giving shards away."""
    entering: Any = {"input_layouts": Shard(0), "desired_input_layouts": Replicate()}
    leaving: Any = {"output_layouts": Replicate(), "desired_output_layouts": Shard(0)}

    def program() -> Tensor:
        model, mesh = make(), world()
        if in_one:
            both = PrepareModuleInputOutput(**entering, use_local_input=True, **leaving)
            parallelize_module(model, mesh, {"first": both})
        else:
            before = PrepareModuleInput(**entering, use_local_output=True)
            parallelize_module(model, mesh, {"first": before})
            parallelize_module(model, mesh, {"first": PrepareModuleOutput(**leaving)})
        result: Tensor = model.first(share(batch(0)[0]))
        return result.detach()

    wanted = make().first(batch(0)[0]).detach().chunk(2)
    for rank, got in enumerate(phalanx.run(program, ranks=2)):
        torch.testing.assert_close(got, wanted[rank], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_parallel(reduction: str) -> None:
    """The classes are spread over the ranks and never put together."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 12, generator=generator, dtype=torch.float64)
    classes = torch.randint(12, (6,), generator=generator)

    def program() -> tuple[Tensor, Tensor]:
        spread = distribute_tensor(logits, world(), [Shard(1)]).requires_grad_()
        with loss_parallel():
            loss: Any = cross_entropy(spread, classes, reduction=reduction)
            loss.sum().backward()
        grad: Any = spread.grad
        return loss.full_tensor().detach(), grad.full_tensor()

    whole = logits.clone().requires_grad_()
    wanted = cross_entropy(whole, classes, reduction=reduction)
    wanted.sum().backward()
    for loss, grad in phalanx.run(program, ranks=3):
        torch.testing.assert_close(loss, wanted.detach(), atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(grad, whole.grad, atol=TOLERANCE, rtol=0)


def test_embedding_by_rows_and_by_columns() -> None:
    indices = torch.tensor([[0, 3, 9], [5, 5, 1]])

    def program(style: Any) -> tuple[Tensor, Tensor]:
        model = nn.Sequential(make(nn.Embedding, 10, 4))
        parallelize_module(model, world(), {"0": style})
        out = model(indices)
        out.pow(2).sum().backward()
        grad: Any = model[0].weight.grad
        return out.detach(), grad.full_tensor()

    plain = make(nn.Embedding, 10, 4)
    wanted = plain(indices)
    wanted.pow(2).sum().backward()
    for style in (
        RowwiseParallel(input_layouts=Replicate()),
        ColwiseParallel(output_layouts=Replicate()),
    ):
        for out, grad in phalanx.run(program, style, ranks=2):
            torch.testing.assert_close(out, wanted.detach(), atol=TOLERANCE, rtol=0)
            torch.testing.assert_close(grad, plain.weight.grad, atol=TOLERANCE, rtol=0)
