"""DTensor: placements, redistribution, operations and random numbers, against whole tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)

import phalanx
from tests.stack.training import SCHEDULES, Net, assert_same, batch, make

PLACEMENTS: list[Placement] = [Replicate(), Shard(0), Shard(1)]


def world() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_distribute_and_put_together(ranks: int) -> None:
    """7 rows and 5 columns divide evenly by nothing."""

    def program() -> None:
        mesh, whole = world(), numbers(7, 5)
        for placement in PLACEMENTS:
            given = whole if dist.get_rank() == 0 else torch.zeros_like(whole)
            spread = distribute_tensor(given, mesh, [placement])
            assert torch.equal(spread.full_tensor(), whole)
            if isinstance(placement, Shard):
                mine = whole.chunk(ranks, dim=placement.dim)
                empty = whole.narrow(placement.dim, 0, 0)
                wanted = (*mine, *[empty] * ranks)[dist.get_rank()]
                assert torch.equal(spread.to_local(), wanted)

    phalanx.run(program, ranks=ranks)


@pytest.mark.parametrize("seed", SCHEDULES)
def test_every_redistribution_in_one_dimension(seed: int) -> None:
    def program() -> None:
        mesh, whole = world(), numbers(7, 5)
        for before, after in itertools.product(PLACEMENTS, PLACEMENTS):
            spread = distribute_tensor(whole, mesh, [before]).redistribute(placements=[after])
            assert spread.placements == (after,)
            assert torch.equal(spread.full_tensor(), whole), (before, after)

    phalanx.run(program, ranks=3, seed=seed)


def test_every_redistribution_in_two_dimensions() -> None:
    def program() -> None:
        mesh = init_device_mesh("cpu", (2, 2))
        whole = numbers(6, 5)
        pairs = list(itertools.product(PLACEMENTS, PLACEMENTS))
        for before, after in itertools.product(pairs, pairs):
            spread = distribute_tensor(whole, mesh, before).redistribute(placements=after)
            assert torch.equal(spread.full_tensor(), whole), (before, after)

    phalanx.run(program, ranks=4)


@pytest.mark.parametrize("kind", ["sum", "avg", "max", "min", "product"])
def test_partial(kind: str) -> None:
    """Each rank holds a part; put together by the reduction it names."""

    def program() -> dict[str, Tensor]:
        mine = numbers(6, 4, seed=dist.get_rank())
        spread = DTensor.from_local(mine, world(), [Partial(kind)])
        return {
            "whole": spread.full_tensor(),
            "rows": spread.redistribute(placements=[Shard(0)]).full_tensor(),
            "columns": spread.redistribute(placements=[Shard(1)]).full_tensor(),
        }

    parts = torch.stack([numbers(6, 4, seed=rank) for rank in range(3)])
    wanted = {
        "sum": parts.sum(0),
        "avg": parts.mean(0),
        "max": parts.amax(0),
        "min": parts.amin(0),
        "product": parts.prod(0),
    }[kind]
    found = phalanx.run(program, ranks=3)
    assert_same(found, dict.fromkeys(("whole", "rows", "columns"), wanted))


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b - b,
    "matrix product": lambda a, b: a @ b.t(),
    "mean": lambda a, b: (a * b).mean(),
    "sum by row": lambda a, b: a.sum(1),
    "softmax": lambda a, b: torch.softmax(a, -1),
    "transpose": lambda a, b: a.t() + 1,
    "view": lambda a, b: a.reshape(2, 4, 6).sum(0),
    "concatenate": lambda a, b: torch.cat([a, b], 1),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "norm": lambda a, b: torch.linalg.vector_norm(a),
    "maximum": lambda a, b: a.amax(0),
    "layer norm": lambda a, b: nn.functional.layer_norm(a, (6,)),
    "index": lambda a, b: a[:, 1:4],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_and_their_gradients(name: str) -> None:
    """For all pairs of placements of the two operands."""
    operation = OPERATIONS[name]

    def whole_result() -> tuple[Tensor, Tensor]:
        left, right = numbers(8, 6).requires_grad_(), numbers(8, 6, seed=1)
        out = operation(left, right)
        out.pow(2).sum().backward()
        assert left.grad is not None
        return out.detach(), left.grad

    def program(out: Tensor, gradient: Tensor) -> None:
        mesh = world()
        for first, second in itertools.product(PLACEMENTS, PLACEMENTS):
            left = distribute_tensor(numbers(8, 6), mesh, [first]).requires_grad_()
            right = distribute_tensor(numbers(8, 6, seed=1), mesh, [second])
            found = operation(left, right)
            found.pow(2).sum().backward()
            assert isinstance(left.grad, DTensor)
            for got, wanted in ((found, out), (left.grad, gradient)):
                torch.testing.assert_close(
                    got.full_tensor().detach(), wanted, atol=1e-10, rtol=0
                )

    phalanx.run(program, *whole_result(), ranks=2)


def test_from_local_and_back() -> None:
    def program() -> None:
        mesh, rank = world(), dist.get_rank()
        local = torch.full((2, 3), float(rank), requires_grad=True)
        spread = DTensor.from_local(local, mesh, [Shard(0)])
        assert spread.shape == (6, 3)
        (spread.to_local() * (rank + 1)).sum().backward()
        assert torch.equal(local.grad, torch.full((2, 3), float(rank + 1)))
        uneven = torch.zeros(rank + 1, 3)
        made = DTensor.from_local(uneven, mesh, [Shard(0)], shape=(6, 3), stride=(3, 1))
        assert made.shape == (6, 3)
        assert torch.equal(made.to_local(), uneven)

    phalanx.run(program, ranks=3)


def test_from_local_checks_shapes() -> None:
    def program() -> None:
        local = torch.zeros(2 + dist.get_rank(), 3)
        DTensor.from_local(local, world(), [Replicate()], run_check=True)

    with pytest.raises(phalanx.PhalanxError):
        phalanx.run(program, ranks=2)


def test_factories() -> None:
    def program() -> None:
        mesh = world()
        for placement in PLACEMENTS:
            options: Any = {"device_mesh": mesh, "placements": [placement]}
            assert torch.equal(dtensor.ones(5, 4, **options).full_tensor(), torch.ones(5, 4))
            assert torch.equal(dtensor.zeros(5, 4, **options).full_tensor(), torch.zeros(5, 4))
            full = dtensor.full((5, 4), 3.0, **options)
            assert torch.equal(full.full_tensor(), torch.full((5, 4), 3.0))
            assert dtensor.empty(5, 4, **options).shape == (5, 4)

    phalanx.run(program, ranks=3)


# torch's, about what the next tests do
OFFSETS = pytest.mark.filterwarnings("ignore:DTensor random operators may not have")


@OFFSETS
def test_random_numbers() -> None:
    """On the CPU torch keeps no offsets (and has no `dtensor.rand`): replicas agree if the
    ranks' generators do, shards are each rank's own numbers."""

    def program() -> tuple[Tensor, Tensor]:
        mesh = world()
        torch.manual_seed(11)
        same: Any = dtensor.empty(6, 4, device_mesh=mesh, placements=[Replicate()]).normal_()
        torch.manual_seed(11 + dist.get_rank())
        apart: Any = dtensor.empty(6, 4, device_mesh=mesh, placements=[Shard(0)]).uniform_()
        return same.to_local(), apart.to_local()

    found = phalanx.run(program, ranks=3)
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][0], found[2][0])
    assert not torch.equal(found[0][1], found[1][1])


@OFFSETS
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_on_shards(dropout: float) -> None:
    def program() -> Tensor:
        spread = distribute_tensor(torch.ones(64, 4), world(), [Shard(0)])
        return nn.functional.dropout(spread, dropout).full_tensor()

    first, *others = phalanx.run(program, ranks=2)
    assert all(torch.equal(first, other) for other in others)
    assert set(first.unique().tolist()) == ({1.0} if dropout == 0 else {0.0, 2.0})


def test_distribute_module() -> None:
    def program() -> tuple[Tensor, dict[str, Any]]:
        def place(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
            if isinstance(module, nn.Linear):
                for key, parameter in list(module.named_parameters(recurse=False)):
                    spread = distribute_tensor(parameter, mesh, [Shard(0)])
                    module.register_parameter(key, nn.Parameter(spread))

        def enter(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            return distribute_tensor(inputs[0], mesh, [Replicate()])

        def leave(module: nn.Module, outputs: Any, mesh: DeviceMesh) -> Any:
            return outputs.full_tensor()

        model = distribute_module(make(), world(), place, enter, leave)
        out = model(batch(0)[0])
        out.pow(2).mean().backward()
        grads = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
        return out.detach(), grads

    model: Net = make()
    out = model(batch(0)[0])
    out.pow(2).mean().backward()
    found = phalanx.run(program, ranks=2)
    assert_same([{"out": got} for got, _ in found], {"out": out.detach()})
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert_same([grads for _, grads in found], wanted)


def test_implicit_replication_and_local_map() -> None:
    from torch.distributed.tensor.experimental import implicit_replication, local_map

    def program() -> tuple[Tensor, Tensor]:
        mesh, whole = world(), numbers(6, 4)
        spread = distribute_tensor(whole, mesh, [Shard(0)])
        with implicit_replication():
            first = (spread + torch.ones(4, dtype=torch.float64)).full_tensor()
        doubled = local_map(
            lambda t: t * 2,
            out_placements=[Shard(0)],
            in_placements=([Shard(0)],),
            device_mesh=mesh,
        )
        return first, doubled(spread).full_tensor()

    for first, second in phalanx.run(program, ranks=3):
        assert torch.equal(first, numbers(6, 4) + 1)
        assert torch.equal(second, numbers(6, 4) * 2)


def test_implicit_replication_is_each_ranks_own() -> None:
    """Rank 0 has left it when the others use it."""
    from torch.distributed.tensor.experimental import implicit_replication

    def program() -> Tensor | None:
        spread = distribute_tensor(numbers(6, 4), world(), [Shard(0)])
        with implicit_replication():
            if dist.get_rank() == 0:
                pass
            else:
                dist.barrier()
                return (spread + torch.ones(4, dtype=torch.float64)).to_local()
        dist.barrier()
        return None

    _, second = phalanx.run(program, ranks=2)
    assert torch.equal(second, numbers(6, 4).chunk(2)[1] + 1)


def test_mixing_with_plain_tensors_is_refused() -> None:
    def program() -> None:
        distribute_tensor(numbers(4, 4), world(), [Shard(0)]) + numbers(4, 4)

    with pytest.raises(phalanx.RankFailedError, match=r"mixed torch\.Tensor and DTensor"):
        phalanx.run(program, ranks=2)
