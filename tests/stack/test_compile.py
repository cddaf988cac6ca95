"""`torch.compile` of a DDP model, an FSDP2 model and functions with functional collectives.

"aot_eager" traces forward and backward and generates no code; "eager" traces less, inductor
does it all.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import phalanx
from phalanx.backend.torch_private import private_modes
from tests.stack.training import (
    DDP,
    OUT,
    SCHEDULES,
    WIDTH,
    assert_same,
    make,
    sgd,
    train,
    trained_alone,
    weights,
)

# torch's own, about itself, while it compiles
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

BACKENDS = [
    pytest.param("eager", marks=pytest.mark.slow),
    "aot_eager",
    pytest.param(
        "inductor",
        marks=[
            pytest.mark.slow,
            pytest.mark.timeout(300),
            pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
        ],
    ),
]


@pytest.fixture(autouse=True)
def _start_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SCHEDULES)
def test_a_function_with_collectives(backend: str, seed: int) -> None:
    def program() -> tuple[Tensor, Tensor]:
        group = dist.group.WORLD

        @torch.compile(backend=backend, fullgraph=True)
        def mix(x: Tensor) -> tuple[Tensor, Tensor]:
            total = functional.all_reduce(x * 2, "sum", group)
            parts = functional.all_gather_tensor(x + 1, 0, group)
            return total.sin(), parts * 3

        first: tuple[Tensor, Tensor] = mix(torch.full((2, 3), float(dist.get_rank())))
        second: tuple[Tensor, Tensor] = mix(torch.full((2, 3), float(dist.get_rank() + 5)))
        return first[0], second[1]

    total = torch.full((2, 3), 6.0).sin()
    parts = torch.cat([torch.full((2, 3), 3.0 * (rank + 6)) for rank in range(3)])
    for got_total, got_parts in phalanx.run(program, ranks=3, seed=seed):
        torch.testing.assert_close(got_total, total)
        assert torch.equal(got_parts, parts)


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_distributeds_own_functions(backend: str) -> None:
    """The compiler rewrites the in-place ones into functional ones."""

    def program() -> Tensor:
        @torch.compile(backend=backend, fullgraph=True)
        def mix(x: Tensor) -> Tensor:
            y = x + 1
            dist.all_reduce(y)
            out = torch.empty(2 * len(y))
            dist.all_gather_into_tensor(out, y)
            return out + x.sum()

        result: Tensor = mix(torch.full((2,), float(dist.get_rank())))
        return result

    found = phalanx.run(program, ranks=2)
    for rank, got in enumerate(found):
        assert torch.equal(got, torch.full((4,), 3.0 + 2 * rank))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_through_collectives(backend: str) -> None:
    def program() -> Tensor:
        @torch.compile(backend=backend)
        def loss(x: Tensor) -> Tensor:
            parts = functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
            return (parts * parts).sum()

        x = torch.full((2,), float(dist.get_rank() + 1), requires_grad=True)
        loss(x).backward()
        assert x.grad is not None
        return x.grad

    for rank, got in enumerate(phalanx.run(program, ranks=2)):
        assert torch.equal(got, torch.full((2,), 4.0 * (rank + 1)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("outside", [True, False], ids=["compile(DDP)", "DDP(compile)"])
def test_a_ddp_model(backend: str, outside: bool) -> None:
    def program() -> dict[str, Tensor]:
        model = make()
        if outside:
            wrapped: Any = torch.compile(DDP(model), backend=backend)
        else:
            wrapped = DDP(torch.compile(model, backend=backend))
        train(wrapped, sgd(model.parameters()))
        return weights(model)

    assert_same(phalanx.run(program, ranks=2), trained_alone(), tolerance=1e-6)


class Wide(nn.Module):
    """Each layer more than the megabyte that fills DDP's first bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 400)
        self.middle = nn.ModuleList(nn.Linear(400, 400) for _ in range(3))
        self.leave = nn.Linear(400, OUT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.middle:
            x = torch.tanh(layer(x))
        result: Tensor = self.leave(x)
        return result


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_a_ddp_model_in_several_graphs(backend: str) -> None:
    """DDP's optimiser cuts the graph at bucket borders, so that communication overlaps."""

    def program() -> tuple[int, dict[str, Tensor]]:
        model = make(Wide)
        counter = CompileCounterWithBackend(backend)
        wrapped: Any = torch.compile(DDP(model, bucket_cap_mb=1), backend=counter)
        train(wrapped, sgd(model.parameters()))
        return counter.frame_count, weights(model)

    found = phalanx.run(program, ranks=2)
    assert all(graphs > 1 for graphs, _ in found)
    assert_same([got for _, got in found], trained_alone(Wide), tolerance=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("whole", [True, False], ids=["model", "layers"])
def test_an_fsdp2_model(backend: str, whole: bool) -> None:
    def program() -> dict[str, Tensor]:
        model = make()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        if not whole:
            model.first.compile(backend=backend)
            model.second.compile(backend=backend)
        for part in (model.first, model.second, model):
            fully_shard(part, mesh=mesh)
        optimizer = sgd(model.parameters())
        compiled: Any = torch.compile(model, backend=backend) if whole else model
        train(compiled, optimizer)
        return weights(model)

    assert_same(phalanx.run(program, ranks=2), trained_alone(), tolerance=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dtensors(backend: str) -> None:
    def program() -> Tensor:
        mesh = init_device_mesh("cpu", (2,))

        @torch.compile(backend=backend)
        def product(x: Any, y: Any) -> Any:
            return (x @ y).relu()

        left = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(1)])
        right = distribute_tensor(torch.ones(2, 3), mesh, [Shard(0)])
        result: Tensor = product(left, right).full_tensor()
        return result

    wanted = torch.arange(8.0).reshape(4, 2) @ torch.ones(2, 3)
    for got in phalanx.run(program, ranks=2):
        assert torch.equal(got, wanted)


@torch.compile(backend="eager", fullgraph=True)
def with_constants(x: Tensor) -> Tensor:
    """The compiler takes the rank and the size of the world for constants."""
    return x + dist.get_rank() + 100 * dist.get_world_size()


def test_each_rank_has_its_own_constants() -> None:
    def program() -> float:
        return with_constants(torch.zeros(1)).item()

    assert phalanx.run(program, ranks=3) == [300.0, 301.0, 302.0]


@pytest.mark.slow
def test_worlds_of_other_sizes() -> None:
    def program() -> float:
        return with_constants(torch.zeros(1)).item()

    for ranks in (1, 2, 1, 3):
        wanted = [100.0 * ranks + rank for rank in range(ranks)]
        assert phalanx.run(program, ranks=ranks) == wanted


@pytest.mark.slow
def test_more_ranks_than_recompilations() -> None:
    """dynamo gives up after eight versions of one function; each rank has eight."""
    ranks = 2 * torch._dynamo.config.recompile_limit

    def program() -> int:
        counter = CompileCounterWithBackend("eager")
        rank = dist.get_rank()

        @torch.compile(backend=counter)
        def add(x: Tensor) -> Tensor:
            return x + rank

        assert add(torch.zeros(1)).item() == rank
        return counter.frame_count

    assert phalanx.run(program, ranks=ranks) == [1] * ranks


@pytest.mark.skipif(torch.__version__ < "2.13", reason="has one cache for all ranks")
def test_ranks_that_compile_at_the_same_time_keep_their_code_apart() -> None:
    def slow(graph: Any, _inputs: Any) -> Any:
        time.sleep(0.01)  # inductor waits for a compiler here, and another rank goes on
        return graph.forward

    def program() -> list[float]:
        @torch.compile(backend=slow)
        def add(x: Tensor) -> Tensor:
            x = x + dist.get_rank()
            dist.barrier()  # dynamo compiles what follows as another function
            return x * (2 + dist.get_rank())

        results = []
        for _ in range(3):
            results.append(add(torch.ones(())).item())
            dist.barrier()
        return results

    for seed in range(3):
        torch._dynamo.reset()
        expected = [[float((1 + rank) * (2 + rank))] * 3 for rank in range(3)]
        assert phalanx.run(program, ranks=3, seed=seed) == expected
    assert private_modes.compiled_now.values == (-1, -1)
