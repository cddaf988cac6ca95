"""DistributedDataParallel where the graph is not the same every time: outputs of all kinds,
unused parameters, control flow that differs by iteration and by rank, errors across ranks."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

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
    shared_batch,
    weights,
)

Pair = namedtuple("Pair", "near far")


@dataclass
class Answer:
    near: Tensor
    far: Tensor


class Box:
    """A container that torch knows nothing of."""

    def __init__(self, near: Tensor, far: Tensor) -> None:
        self.near, self.far = near, far


OUTPUTS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda a, b: (a, b), lambda out: out[0] + out[1]),
    "list": (lambda a, b: [a, b], lambda out: out[0] + out[1]),
    "dict": (lambda a, b: {"a": a, "b": b}, lambda out: out["a"] + out["b"]),
    "named tuple": (Pair, lambda out: out.near + out.far),
    "nested": (
        lambda a, b: {"a": [a, ("text", 3)], "more": {"b": (b,), "none": None}},
        lambda out: out["a"][0] + out["more"]["b"][0],
    ),
    "dataclass": (Answer, lambda out: out.near + out.far),
    "custom": (Box, lambda out: out.near + out.far),
}


class Wrapping(Net):
    """Gives its two results in the form asked for."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.first(x))
        return self.form(self.second(hidden), self.second(hidden).pow(2))


def _fit(model: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]], read: Any) -> Any:
    optimizer = sgd(model.parameters())
    for step in range(3):
        inputs, targets = data(step)
        optimizer.zero_grad()
        (read(model(inputs)) - targets).pow(2).mean().backward()
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize(
    "options",
    [{}, {"find_unused_parameters": True}, {"static_graph": True}],
    ids=lambda options: ",".join(options) or "plain",
)
def test_outputs(name: str, options: dict[str, Any]) -> None:
    form, read = OUTPUTS[name]
    if (name == "custom" and options) or (name == "dataclass" and "static_graph" in options):
        pytest.skip("torch looks for the graph in the containers it knows only")

    def program() -> Any:
        return _fit(DDP(make(Wrapping, form), **options), shared_batch, read)

    assert_same(phalanx.run(program, ranks=3), _fit(make(Wrapping, form), batch, read))


class Branching(nn.Module):
    """Three experts, of which one call uses those asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.experts = nn.ModuleList(nn.Linear(HIDDEN, OUT) for _ in range(3))

    def forward(self, x: Tensor, chosen: list[int]) -> Tensor:
        hidden = torch.tanh(self.first(x))
        return torch.stack([self.experts[number](hidden) for number in chosen]).sum(0)


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("views", [False, True])
def test_unused_parameters_by_iteration(views: bool, seed: int) -> None:
    plan = [[0], [1, 2], [0, 1, 2], [2]]

    def fit(model: nn.Module, data: Any) -> Any:
        optimizer = sgd(model.parameters())
        for step, chosen in enumerate(plan):
            inputs, targets = data(step)
            optimizer.zero_grad()
            (model(inputs, chosen) - targets).pow(2).mean().backward()
            optimizer.step()
        return weights(model)

    def program() -> Any:
        model = DDP(make(Branching), find_unused_parameters=True, gradient_as_bucket_view=views)
        return fit(model, shared_batch)

    assert_same(phalanx.run(program, ranks=3, seed=seed), fit(make(Branching), batch))


@pytest.mark.parametrize("seed", SCHEDULES)
def test_unused_parameters_by_rank(seed: int) -> None:
    """Each rank uses another expert; the gradient is the mean over all ranks all the same."""

    def gradients(model: nn.Module, calls: list[tuple[Tensor, Tensor, list[int]]]) -> Any:
        for inputs, targets, chosen in calls:
            loss = (model(inputs, chosen) - targets).pow(2).mean()
            (loss / len(calls)).backward()
        return {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}

    def program() -> Any:
        model = DDP(make(Branching), find_unused_parameters=True)
        return gradients(model, [(*shared_batch(0), [dist.get_rank() % 2])])

    inputs, targets = batch(0)
    parts = zip(inputs.chunk(3), targets.chunk(3), strict=True)
    wanted = gradients(
        make(Branching), [(x, y, [rank % 2]) for rank, (x, y) in enumerate(parts)]
    )
    unused = {name for name, value in wanted.items() if value is None}
    found = phalanx.run(program, ranks=3, seed=seed)
    for got in found:
        assert {name for name, value in got.items() if value is None} == unused
    used = {name: value for name, value in wanted.items() if value is not None}
    assert_same([{name: got[name] for name in used} for got in found], used)


def test_unused_parameters_without_the_option_are_an_error() -> None:
    def program() -> str:
        model = DDP(make(Branching))
        for step in range(2):
            inputs, targets = shared_batch(step)
            try:
                (model(inputs, [0]) - targets).pow(2).mean().backward()
            except RuntimeError as error:
                assert step == 1
                return str(error)
        raise AssertionError("no error")

    for text in phalanx.run(program, ranks=2):
        assert "Expected to have finished reduction in the prior iteration" in text


class Making(Net):
    """Makes a tensor that requires a gradient in forward, and uses it."""

    def forward(self, x: Tensor) -> Tensor:
        fresh = torch.ones(HIDDEN, dtype=x.dtype, requires_grad=True)
        result: Tensor = self.second(torch.tanh(self.first(x) * fresh))
        return result


def test_new_tensors_in_forward() -> None:
    def program() -> Any:
        return _fit(DDP(make(Making), find_unused_parameters=True), shared_batch, lambda y: y)

    assert_same(phalanx.run(program, ranks=3), _fit(make(Net), batch, lambda y: y))


def test_a_rank_with_another_model_is_told() -> None:
    """The rank that differs from rank 0 raises; rank 0 itself, as on Gloo, only sees that
    somebody is gone."""

    def program() -> str:
        class Odd(Net):
            def __init__(self) -> None:
                super().__init__()
                if dist.get_rank() == 1:
                    self.first = nn.Linear(WIDTH, HIDDEN + 1)
                    self.second = nn.Linear(HIDDEN + 1, OUT)

        try:
            DDP(make(Odd))
        except RuntimeError as error:
            return str(error)
        raise AssertionError("no error")

    first, second = phalanx.run(program, ranks=2)
    assert "rank 1 returned" in first
    assert "params[0] in this process with sizes [11, 6] appears not to match" in second


def test_a_rank_with_fewer_parameters_is_told() -> None:
    def program() -> str:
        model = make()
        if dist.get_rank() == 1:
            model.second.bias = None
        try:
            DDP(model)
        except RuntimeError as error:
            return str(error)
        raise AssertionError("no error")

    for text in phalanx.run(program, ranks=2):
        assert "DDP expects same model across all ranks" in text
