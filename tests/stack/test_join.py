"""Uneven inputs: `Join`, `model.join()`, several joinables, early termination."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.functional import mse_loss

import phalanx
from tests.stack.training import DDP, SCHEDULES, Net, assert_same, batch, make, weights

# isort: split
# after the module above, which imports this without its warnings
from torch.distributed.optim import ZeroRedundancyOptimizer


def plain(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def uneven(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Rank r has r + 2 batches."""
    return [batch(10 * rank + step, 6) for step in range(rank + 2)]


def reference(ranks: int, *, divide_by_initial: bool) -> dict[str, Tensor]:
    """Each step: the sum of the gradients of those who still have data, divided by all, or
    by those who have."""
    model = make()
    optimizer = plain(model.parameters())
    for step in range(ranks + 1):
        active = [uneven(rank)[step] for rank in range(ranks) if step < rank + 2]
        optimizer.zero_grad()
        for inputs, targets in active:
            divisor = ranks if divide_by_initial else len(active)
            (mse_loss(model(inputs), targets) / divisor).backward()
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("divide_by_initial", [True, False])
@pytest.mark.parametrize("views", [False, True])
def test_ddp_join(divide_by_initial: bool, views: bool, seed: int) -> None:
    def program() -> dict[str, Tensor]:
        model = DDP(make(), gradient_as_bucket_view=views)
        optimizer = plain(model.parameters())
        with model.join(divide_by_initial_world_size=divide_by_initial):
            for inputs, targets in uneven(dist.get_rank()):
                optimizer.zero_grad()
                mse_loss(model(inputs), targets).backward()
                optimizer.step()
        return weights(model)

    found = phalanx.run(program, ranks=3, seed=seed)
    assert_same(found, reference(3, divide_by_initial=divide_by_initial))


OWNERS = {"first.weight": 0, "second.weight": 1, "first.bias": 2, "second.bias": 2}
"""Which of three ranks ZeRO gives which parameter: the largest first, to the least laden."""


def test_join_of_ddp_and_zero() -> None:
    """Two joinables. A rank that has joined steps its shard on with the gradient it saw last,
    because DDP keeps no gradients for those who are done."""

    def program() -> dict[str, Tensor]:
        model = DDP(make())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        with Join([model, optimizer]):
            for inputs, targets in uneven(dist.get_rank()):
                optimizer.zero_grad()
                mse_loss(model(inputs), targets).backward()
                optimizer.step()
        return weights(model)

    model = make()
    optimizer = plain(model.parameters())
    seen: dict[str, Tensor] = {}
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(3):
            if step < rank + 2:
                inputs, targets = uneven(rank)[step]
                (mse_loss(model(inputs), targets) / 3).backward()
        for name, parameter in model.named_parameters():
            if step < OWNERS[name] + 2:
                seen[name] = parameter.grad.clone()
            parameter.grad = seen[name].clone()
        optimizer.step()
    assert_same(phalanx.run(program, ranks=3), weights(model))


def test_early_termination_raises_on_every_rank() -> None:
    def program() -> tuple[int, str]:
        model = DDP(make())
        done = 0
        try:
            with model.join(throw_on_early_termination=True):
                for inputs, targets in uneven(dist.get_rank()):
                    mse_loss(model(inputs), targets).backward()
                    done += 1
        except RuntimeError as error:
            return done, str(error)
        raise AssertionError("no error")

    for done, text in phalanx.run(program, ranks=3):
        assert done == 2
        assert "exhausted" in text


def test_join_turned_off_does_nothing() -> None:
    def program() -> int:
        model = DDP(make())
        with model.join(enable=False):
            inputs, targets = uneven(dist.get_rank())[0]
            mse_loss(model(inputs), targets).backward()
        return 1

    assert phalanx.run(program, ranks=2) == [1, 1]


class Counter(Joinable):
    """Counts calls over all ranks, and goes on counting as a shadow."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(1)
        self.ended = ""

    def __call__(self) -> None:
        Join.notify_join_context(self)
        self.add(1)

    def add(self, amount: int) -> None:
        count = torch.tensor([float(amount)])
        dist.all_reduce(count)
        self.total += count

    def join_hook(self, **options: Any) -> JoinHook:
        counter = self

        class Hook(JoinHook):
            def main_hook(self) -> None:
                counter.add(0)

            def post_hook(self, is_last_joiner: bool) -> None:
                counter.ended = f"{options['name']}: {is_last_joiner}"

        return Hook()

    @property
    def join_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        return dist.group.WORLD


def test_a_joinable_of_the_programs_own() -> None:
    def program() -> tuple[float, str]:
        counter = Counter()
        with Join([counter], name="mine"):
            for _ in range(dist.get_rank() + 1):
                counter()
        return counter.total.item(), counter.ended

    assert phalanx.run(program, ranks=3) == [
        (6.0, "mine: False"),
        (6.0, "mine: False"),
        (6.0, "mine: True"),
    ]


def test_join_with_control_flow_and_unused_parameters() -> None:
    class Halved(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.tanh(self.first(x))
            return self.second(hidden) if len(x) > 2 else hidden[:, :4] * 1.0

    def program() -> dict[str, Tensor]:
        model = DDP(make(Halved), find_unused_parameters=True)
        optimizer = plain(model.parameters())
        with model.join():
            for number, (inputs, targets) in enumerate(uneven(dist.get_rank())):
                rows = 2 if number % 2 else 6
                optimizer.zero_grad()
                mse_loss(model(inputs[:rows]), targets[:rows]).backward()
                optimizer.step()
        return weights(model)

    found = phalanx.run(program, ranks=3)
    assert_same(found[1:], found[0], tolerance=0)
