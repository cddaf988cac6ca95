"""State that torch and Python keep once per process, used by training code: each rank has its
own where ranks may differ, and the caller gets back what it had."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import phalanx
from tests.stack.training import DDP, SCHEDULES, TOLERANCE, Net, make, shared_batch


class Dropping(Net):
    """Dropout inside what is computed again: torch saves and restores the generator."""

    again = True

    def part(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(torch.tanh(self.first(x)), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.part, x, use_reentrant=False) if self.again else self.part(x)
        result: Tensor = self.second(hidden)
        return result


class DroppingOnce(Dropping):
    again = False


@pytest.mark.parametrize("seed", SCHEDULES)
def test_dropout_is_the_same_when_computed_again(seed: int) -> None:
    def gradients(kind: type[nn.Module]) -> list[Tensor]:
        torch.manual_seed(dist.get_rank())
        model = DDP(make(kind))
        for step in range(2):
            inputs, targets = shared_batch(step)
            mse_loss(model(inputs), targets).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    again = phalanx.run(gradients, Dropping, ranks=3, seed=seed)
    once = phalanx.run(gradients, DroppingOnce, ranks=3)
    for got, wanted in zip(again, once, strict=True):
        for each, want in zip(got, wanted, strict=True):
            torch.testing.assert_close(each, want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("seed", SCHEDULES)
def test_random_numbers_are_each_ranks_own(seed: int) -> None:
    """As if the ranks were alone: what the others draw in between changes nothing."""

    def draw() -> list[float]:
        return [torch.rand(()).item(), random.random(), float(numpy.random.rand())]

    def program() -> list[list[float]]:
        rank = dist.get_rank()
        torch.manual_seed(rank)
        random.seed(rank)
        numpy.random.seed(rank)
        found = []
        for _ in range(3):
            found.append(draw())
            dist.barrier()
        return found

    states = (torch.get_rng_state(), random.getstate(), numpy.random.get_state())
    wanted = []
    for rank in range(3):
        torch.manual_seed(rank)
        random.seed(rank)
        numpy.random.seed(rank)
        wanted.append([draw() for _ in range(3)])
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
    expected = draw()

    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
    assert phalanx.run(program, ranks=3, seed=seed) == wanted
    assert draw() == expected, "the run changed the caller's generators"


def test_autocast_and_grad_mode_are_each_ranks_own() -> None:
    def program() -> tuple[bool, bool]:
        odd = dist.get_rank() % 2 == 1
        with torch.autocast("cpu", torch.bfloat16, enabled=odd), torch.set_grad_enabled(odd):
            dist.barrier()
            return torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()

    assert phalanx.run(program, ranks=2) == [(False, False), (True, True)]


def test_warning_filters_are_each_ranks_own() -> None:
    """Rank 0, which came first, has left its block when the others still rely on theirs."""

    def program() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.barrier()
            if dist.get_rank() > 0:
                dist.barrier()
                warnings.warn("nobody must see this", stacklevel=1)
                return
        dist.barrier()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        phalanx.run(program, ranks=3)
    assert seen == []


def test_global_module_hooks_are_each_ranks_own() -> None:
    def program() -> list[int]:
        seen: list[int] = []
        handle = nn.modules.module.register_module_forward_pre_hook(
            lambda module, args: seen.append(int(args[0][0]))
        )
        dist.barrier()
        nn.Identity()(torch.tensor([dist.get_rank()]))
        dist.barrier()
        handle.remove()
        return seen

    assert phalanx.run(program, ranks=3) == [[0], [1], [2]]


SETTINGS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any], Any]] = {
    "default dtype": (torch.set_default_dtype, torch.get_default_dtype, torch.float64),
    "deterministic": (
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled,
        True,
    ),
    "matmul": (
        torch.set_float32_matmul_precision,
        torch.get_float32_matmul_precision,
        "high",
    ),
    "anomaly": (torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled, True),
    "filters": (warnings.simplefilter, lambda: list(warnings.filters), "ignore"),
    "folder": (os.chdir, os.getcwd, Path(__file__).parent),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_end_with_the_run(name: str) -> None:
    write, read, other = SETTINGS[name]
    before = read()

    def program() -> Any:
        write(other)
        dist.barrier()
        return read()

    found = phalanx.run(program, ranks=2)
    after = read()
    if after != before:  # for the tests that follow
        _put_back(name, before)
    assert found[0] != before, "the setting had no effect in the ranks"
    assert after == before


def _put_back(name: str, value: Any) -> None:
    if name == "filters":
        warnings.filters[:] = value
    else:
        SETTINGS[name][0](value)
