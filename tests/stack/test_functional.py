"""Functional and differentiable collectives, eagerly; `test_compile.py` compiles them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import phalanx
from tests.stack.training import SCHEDULES

# torch 2.13's about the older spellings, which programs (and torch 2.11) still use
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def mine(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 4, generator=generator, dtype=torch.float64)


ALL = [mine(rank) for rank in range(3)]


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("kind", ["group", "mesh", "mesh and dimension", "name", "ranks"])
def test_functional_collectives(kind: str, seed: int) -> None:
    def program() -> None:
        rank = dist.get_rank()
        mesh = init_device_mesh("cpu", (3,))
        group: Any = {
            "group": dist.group.WORLD,
            "mesh": mesh,
            "mesh and dimension": (mesh, 0),
            "name": dist.group.WORLD.group_name,
            "ranks": [0, 1, 2],
        }[kind]
        total = functional.all_reduce(mine(rank), "sum", group)
        torch.testing.assert_close(total, sum(ALL[1:], ALL[0]))
        mean = functional.all_reduce(mine(rank), "avg", group)
        torch.testing.assert_close(mean, sum(ALL[1:], ALL[0]) / 3)
        highest = functional.all_reduce(mine(rank), "max", group)
        assert torch.equal(highest, torch.stack(ALL).amax(0))
        gathered = functional.all_gather_tensor(mine(rank), 0, group)
        assert torch.equal(gathered, torch.cat(ALL))
        sideways = functional.all_gather_tensor(mine(rank), 1, group)
        assert torch.equal(sideways, torch.cat(ALL, 1))
        part = functional.reduce_scatter_tensor(mine(rank), "sum", 0, group)
        torch.testing.assert_close(part, sum(ALL[1:], ALL[0]).chunk(3)[rank])
        first = functional.broadcast(mine(rank), 1, group)
        assert torch.equal(first, ALL[1])
        splits = [1, 2, 3]
        received = functional.all_to_all_single(mine(rank), [rank + 1] * 3, splits, group)
        assert torch.equal(received, torch.cat([each.split(splits)[rank] for each in ALL]))
        many = functional.all_reduce_coalesced([mine(rank), mine(rank)[0]], "sum", group)
        torch.testing.assert_close(many[0], total)
        torch.testing.assert_close(many[1], total[0])
        lists = functional.all_gather_into_tensor_coalesced([mine(rank), mine(rank)[0]], group)
        assert torch.equal(lists[0], torch.cat(ALL))
        assert torch.equal(lists[1], torch.cat([each[0] for each in ALL]))
        halves = functional.reduce_scatter_tensor_coalesced(
            [mine(rank)] * 2, "sum", [0, 0], group
        )
        torch.testing.assert_close(halves[0], part)
        torch.testing.assert_close(halves[1], part)
        if kind != "name":  # torch takes no name there
            moved = functional.permute_tensor(mine(rank)[0], [1, 2, 0], group)
            assert torch.equal(moved, ALL[(rank - 1) % 3][0])

    phalanx.run(program, ranks=3, seed=seed)


def test_nothing_waits_until_the_value_is_used() -> None:
    def program() -> None:
        found = functional.all_reduce(mine(dist.get_rank()), "sum", dist.group.WORLD)
        assert isinstance(found, functional.AsyncCollectiveTensor)
        assert not isinstance(found + 0, functional.AsyncCollectiveTensor)
        plain = functional.wait_tensor(found)
        torch.testing.assert_close(plain, sum(ALL[1:], ALL[0]))

    phalanx.run(program, ranks=3)


def test_in_place_forms() -> None:
    """torch.distributed's own functions as the compiler writes them."""

    def program() -> None:
        rank = dist.get_rank()
        out = torch.empty(18, 4, dtype=torch.float64)
        functional.all_gather_tensor_inplace(out, mine(rank), dist.group.WORLD)
        assert torch.equal(out, torch.cat(ALL))
        part = torch.empty(2, 4, dtype=torch.float64)
        functional.reduce_scatter_tensor_inplace(
            part, mine(rank), "sum", group=dist.group.WORLD
        )
        torch.testing.assert_close(part, sum(ALL[1:], ALL[0]).chunk(3)[rank])
        value = mine(rank)
        functional.all_reduce_inplace(value, "sum", dist.group.WORLD)
        torch.testing.assert_close(value, sum(ALL[1:], ALL[0]))

    phalanx.run(program, ranks=3)


def test_autograd_forms() -> None:
    def program() -> None:
        rank, group = dist.get_rank(), dist.group.WORLD
        x = mine(rank).requires_grad_()
        out = functional.all_gather_tensor_autograd(x, 0, group)
        (out * (rank + 1)).sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 6.0))
        y = mine(rank).requires_grad_()
        part = functional.reduce_scatter_tensor_autograd(y, "sum", 0, group)
        (part * (rank + 1)).sum().backward()
        wanted = torch.tensor([1.0, 1, 2, 2, 3, 3], dtype=torch.float64)[:, None].expand(6, 4)
        assert torch.equal(y.grad, wanted)
        z = mine(rank).requires_grad_()
        moved = functional.all_to_all_single_autograd(z, [2, 2, 2], [2, 2, 2], group)
        (moved * (rank + 1)).sum().backward()
        assert torch.equal(z.grad, wanted)

    phalanx.run(program, ranks=3)


def test_subgroups_by_name() -> None:
    def program() -> Tensor:
        pairs, _ = dist.new_subgroups(2)
        value = torch.tensor([float(dist.get_rank())])
        return functional.all_reduce(value, "sum", pairs) + 0

    found = [value.item() for value in phalanx.run(program, ranks=4)]
    assert found == [1.0, 1.0, 5.0, 5.0]


def test_a_group_made_after_the_thread_that_uses_it() -> None:
    """A thread of the rank, started first; the group comes later, and it is used by name."""

    def program() -> float:
        made, box = threading.Event(), []

        def work() -> None:
            made.wait()
            value = functional.all_reduce(torch.ones(1), "sum", box[0].group_name)
            box.append((value + 0).item())

        thread = threading.Thread(target=work)
        thread.start()
        box.append(dist.new_group([0, 1]))
        made.set()
        thread.join()
        return box[1]

    assert phalanx.run(program, ranks=2) == [2.0, 2.0]


def _gradient(rank: int, use: Any) -> Tensor:
    x = mine(rank).requires_grad_()
    use(x).pow(2).sum().backward()
    assert x.grad is not None
    return x.grad


def _rows(x: Tensor) -> list[Tensor]:
    return list(x.chunk(3))


DIFFERENTIABLE: dict[str, Any] = {
    "all_reduce": lambda x: differentiable.all_reduce(x),
    "broadcast": lambda x: differentiable.broadcast(x, 1),
    "all_gather": lambda x: torch.stack(differentiable.all_gather(x)),
    "reduce": lambda x: differentiable.reduce(x, 1),
    "all_to_all": lambda x: torch.stack(
        differentiable.all_to_all(_rows(torch.zeros_like(x)), _rows(x))
    ),
    "all_to_all_single": lambda x: differentiable.all_to_all_single(torch.zeros_like(x), x),
    "reduce_scatter": lambda x: differentiable.reduce_scatter(
        torch.zeros_like(x[:2]), _rows(x)
    ),
    "gather": lambda x: torch.stack(differentiable.gather(x, 0)),
    "scatter": lambda x: differentiable.scatter([x, 2 * x, 3 * x], 0),
}


def wanted_gradient(name: str, rank: int) -> Tensor:
    """By hand: the derivative of the sum of all ranks' losses by this rank's input."""
    total = torch.stack(ALL).sum(0)
    x = ALL[rank]
    zero = torch.zeros_like(x)
    return {
        "all_reduce": 6 * total,
        "broadcast": 6 * x if rank == 1 else zero,
        "all_gather": 6 * x,
        "reduce": 2 * total,
        "all_to_all": 2 * x,
        "all_to_all_single": 2 * x,
        "reduce_scatter": 2 * total,
        "gather": 2 * x,
        "scatter": 2 * 14 * x if rank == 0 else zero,
    }[name]


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_differentiable_collectives(name: str, seed: int) -> None:
    found = phalanx.run(
        lambda: _gradient(dist.get_rank(), DIFFERENTIABLE[name]), ranks=3, seed=seed
    )
    for rank, got in enumerate(found):
        torch.testing.assert_close(got, wanted_gradient(name, rank), atol=1e-12, rtol=0)
