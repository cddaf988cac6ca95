"""Parallelisms combined, as large models use them: three dimensions at once, experts spread
over the ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import mse_loss

import phalanx
from tests.stack.training import SCHEDULES, TOLERANCE, WIDTH, assert_same, batch, make, share

CPU = torch.device("cpu")


class Stage(nn.Module):
    """As wide at its end as at its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 8)
        self.down = nn.Linear(8, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(torch.tanh(self.up(x)))
        return result


def gradients(number: int, module: nn.Module) -> dict[str, Tensor]:
    found: dict[str, Any] = {f"{number}.{n}": p.grad for n, p in module.named_parameters()}
    return {
        name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        for name, grad in found.items()
    }


# torch's, about in-place operations on what a layer returns; there are none here
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("kind", [Schedule1F1B, ScheduleInterleaved1F1B])
@pytest.mark.parametrize("seed", SCHEDULES)
def test_pipeline_by_data_by_tensor(kind: Any, seed: int) -> None:
    """Eight ranks as a cube: stages over one edge, rows of the batch over the second,
    columns and rows of the layers over the third."""
    loops = 1 if kind is Schedule1F1B else 2
    count = 2 * loops
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}

    def program() -> dict[str, Tensor]:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        place = mesh.get_local_rank("pp")
        mine = {}
        for number in range(place, count, 2):
            module: Any = parallelize_module(make(Stage, seed=number), mesh["tp"], plan)
            mine[number] = fully_shard(module, mesh=mesh["dp"])
        group = mesh.get_group("pp")
        stages: Any = [PipelineStage(m, n, count, CPU, group=group) for n, m in mine.items()]
        schedule = kind(stages if loops > 1 else stages[0], n_microbatches=4, loss_fn=mse_loss)
        inputs = share(batch(0)[0], mesh.get_group("dp"))
        targets = share(batch(1)[0], mesh.get_group("dp"))
        schedule.step(inputs) if place == 0 else schedule.step(target=targets)
        found: dict[str, Tensor] = {}
        for number, module in mine.items():
            found.update(gradients(number, module))
        return found

    modules = [make(Stage, seed=number) for number in range(count)]
    mse_loss(nn.Sequential(*modules)(batch(0)[0]), batch(1)[0]).backward()
    wanted: dict[str, Tensor] = {}
    for number, module in enumerate(modules):
        wanted.update(gradients(number, module))
    for rank, got in enumerate(phalanx.run(program, ranks=8, seed=seed)):
        mine = {name: g for name, g in wanted.items() if int(name[0]) % 2 == rank // 4}
        assert_same([got], mine)


EXPERTS = 6


def expert(number: int) -> nn.Linear:
    module: nn.Linear = make(nn.Linear, WIDTH, WIDTH, seed=number)
    return module


def choices(rows: Tensor) -> Tensor:
    """Which expert each row goes to: by its largest feature, so quite unevenly."""
    return rows.argmax(1) % EXPERTS


def spread_experts(rows: Tensor, experts: list[nn.Linear]) -> Tensor:
    """Rows travel to the rank of their expert and back; how many is not known before."""
    size, mine = dist.get_world_size(), len(experts)
    chosen = choices(rows)
    order = torch.argsort(chosen, stable=True)
    counts = torch.bincount(chosen, minlength=EXPERTS)
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts)
    outgoing_rows = counts.view(size, mine).sum(1).tolist()
    incoming_rows = incoming.view(size, mine).sum(1).tolist()
    group = dist.group.WORLD
    here = all_to_all_single_autograd(rows[order], incoming_rows, outgoing_rows, group)
    which = torch.arange(mine).repeat(size).repeat_interleave(incoming)
    done = torch.empty_like(here)
    for number, module in enumerate(experts):
        done = done.index_put((which == number,), module(here[which == number]))
    back = all_to_all_single_autograd(done, outgoing_rows, incoming_rows, group)
    return torch.empty_like(rows).index_put((order,), back)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("seed", SCHEDULES)
def test_experts_over_the_ranks(ranks: int, seed: int) -> None:
    def program() -> tuple[Tensor, dict[str, Tensor]]:
        rank, each = dist.get_rank(), EXPERTS // ranks
        experts = [expert(rank * each + number) for number in range(each)]
        rows = share(batch(0)[0])
        out = spread_experts(rows, experts)
        out.pow(2).sum().backward()
        found: dict[str, Tensor] = {}
        for number, module in enumerate(experts):
            found.update(gradients(rank * each + number, module))
        return out.detach(), found

    experts = [expert(number) for number in range(EXPERTS)]
    rows = batch(0)[0]
    chosen = choices(rows)
    parts = [experts[int(chosen[row])](rows[row]) for row in range(len(rows))]
    whole = torch.stack(parts)
    whole.pow(2).sum().backward()
    wanted: dict[str, Tensor] = {}
    for number, module in enumerate(experts):
        wanted.update(gradients(number, module))

    found = phalanx.run(program, ranks=ranks, seed=seed)
    together = torch.cat([out for out, _ in found])
    torch.testing.assert_close(together, whole.detach(), atol=TOLERANCE, rtol=0)
    for rank, (_, grads) in enumerate(found):
        of_rank = range(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)
        mine = {name: g for name, g in wanted.items() if int(name[0]) in of_rank}
        assert grads.keys() == mine.keys()
        for name, want in mine.items():
            got = grads[name]
            if want is None:  # no row chose this expert
                assert got is None or not got.any()
            else:
                torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)
