"""Every pipeline schedule: losses and gradients equal those of the whole model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    SplitPoint,
    build_stage,
    pipe_split,
    pipeline,
)
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime, get_schedule_class
from torch.nn.functional import mse_loss

import phalanx
from tests.stack.training import DDP, SCHEDULES, TOLERANCE, WIDTH, assert_same, batch, make

CPU = torch.device("cpu")


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def layers(count: int) -> list[nn.Module]:
    return [make(layer, seed=number) for number in range(count)]


def data() -> tuple[Tensor, Tensor]:
    return batch(0)[0], batch(1)[0]


def loss_fn(out: Tensor, target: Tensor) -> Tensor:
    return mse_loss(out, target)


def whole(count: int) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of all layers in one process."""
    each = layers(count)
    model = nn.Sequential(*each)
    inputs, targets = data()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    return loss.item(), gradients(dict(enumerate(each)))


def gradients(stages: dict[int, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{number}.{name}": parameter.grad
        for number, module in stages.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def step(schedule: Any, *, first: bool, last: bool) -> list[Tensor]:
    inputs, targets = data()
    losses: list[Tensor] = []
    given = (inputs,) if first else ()
    if last:
        schedule.step(*given, target=targets, losses=losses)
    else:
        schedule.step(*given)
    return losses


def check(found: list[tuple[list[Tensor], dict[str, Tensor]]], count: int) -> None:
    """The mean of the micro-batches' losses, and each gradient on exactly one rank."""
    loss, wanted = whole(count)
    losses = [torch.stack(each).mean().item() for each, _ in found if each]
    assert losses == [pytest.approx(loss, abs=TOLERANCE)]
    got: dict[str, Tensor] = {}
    for _, grads in found:
        assert not got.keys() & grads.keys()
        got.update(grads)
    assert_same([got], wanted)


@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("seed", SCHEDULES)
def test_one_stage_per_rank(kind: Any, ranks: int, seed: int) -> None:
    def program() -> tuple[list[Tensor], dict[str, Tensor]]:
        rank = dist.get_rank()
        module = layers(ranks)[rank]
        stage = PipelineStage(module, rank, ranks, CPU)
        schedule = kind(stage, n_microbatches=6, loss_fn=loss_fn)
        losses = step(schedule, first=rank == 0, last=rank == ranks - 1)
        return losses, gradients({rank: module})

    check(phalanx.run(program, ranks=ranks, seed=seed), ranks)


@pytest.mark.parametrize(
    "kind",
    [ScheduleInterleaved1F1B, ScheduleLoopedBFS, ScheduleInterleavedZeroBubble],
)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("seed", SCHEDULES)
def test_stages_in_loops(kind: Any, ranks: int, seed: int) -> None:
    """Rank r has the stages r and r + n."""
    count = 2 * ranks

    def program() -> tuple[list[Tensor], dict[str, Tensor]]:
        rank = dist.get_rank()
        mine = {number: layers(count)[number] for number in (rank, rank + ranks)}
        stages = [PipelineStage(m, number, count, CPU) for number, m in mine.items()]
        schedule = kind(stages, n_microbatches=6, loss_fn=loss_fn)
        losses = step(schedule, first=rank == 0, last=rank == ranks - 1)
        return losses, gradients(mine)

    check(phalanx.run(program, ranks=ranks, seed=seed), count)


@pytest.mark.parametrize("kind", [ScheduleZBVZeroBubble, ScheduleDualPipeV])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("seed", SCHEDULES)
def test_stages_in_a_v(kind: Any, ranks: int, seed: int) -> None:
    """Rank r has the stages r and 2n - 1 - r, so rank 0 has the first and the last."""
    count = 2 * ranks

    def program() -> tuple[list[Tensor], dict[str, Tensor]]:
        rank = dist.get_rank()
        mine = {number: layers(count)[number] for number in (rank, count - 1 - rank)}
        stages = [PipelineStage(m, number, count, CPU) for number, m in mine.items()]
        schedule = kind(stages, n_microbatches=6, loss_fn=loss_fn)
        losses = step(schedule, first=rank == 0, last=rank == 0)
        return losses, gradients(mine)

    check(phalanx.run(program, ranks=ranks, seed=seed), count)


def test_a_schedule_read_from_a_file(tmp_path: Any) -> None:
    """The runtime executes what a CSV says: here what interleaved 1F1B planned itself."""
    path = tmp_path / "plan.csv"

    def program() -> tuple[list[Tensor], dict[str, Tensor]]:
        rank = dist.get_rank()
        mine = {number: layers(4)[number] for number in (rank, rank + 2)}
        stages = [PipelineStage(m, number, 4, CPU) for number, m in mine.items()]
        planned = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=loss_fn)
        if rank == 0:
            planned._dump_csv(str(path))
        dist.barrier()
        stages = [PipelineStage(m, number, 4, CPU) for number, m in mine.items()]
        schedule = _PipelineScheduleRuntime(stages, n_microbatches=4, loss_fn=loss_fn)
        schedule._load_csv(str(path), format="compute_comms")
        losses = step(schedule, first=rank == 0, last=rank == 1)
        return losses, gradients(mine)

    check(phalanx.run(program, ranks=2), 4)


def test_schedules_by_name() -> None:
    for name in (
        "1F1B",
        "GPipe",
        "Interleaved1F1B",
        "LoopedBFS",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    ):
        assert get_schedule_class(name).__name__ == f"Schedule{name}"


def test_forward_only() -> None:
    def program() -> Tensor | None:
        rank = dist.get_rank()
        stage = PipelineStage(layers(3)[rank], rank, 3, CPU)
        schedule = ScheduleGPipe(stage, n_microbatches=4)
        result: Tensor | None = schedule.eval(data()[0]) if rank == 0 else schedule.eval()
        return result

    out = phalanx.run(program, ranks=3)[2]
    wanted = nn.Sequential(*layers(3))(data()[0])
    torch.testing.assert_close(out, wanted, atol=TOLERANCE, rtol=0)


class Split(nn.Module):
    """Says itself where its stages end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = layers(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        pipe_split()
        x = self.second(x)
        pipe_split()
        result: Tensor = self.third(x)
        return result


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(layers(3))

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


# torch's: tracing asks for a type it has deprecated itself
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("by_hand", [True, False], ids=["pipe_split", "split_spec"])
def test_stages_by_tracing(by_hand: bool) -> None:
    def program() -> tuple[list[float], list[Tensor]]:
        rank = dist.get_rank()
        example = (data()[0].chunk(4)[0],)
        if by_hand:
            pipe = pipeline(Split(), mb_args=example)
        else:
            points = {f"stages.{n}": SplitPoint.BEGINNING for n in (1, 2)}
            pipe = pipeline(Plain(), mb_args=example, split_spec=points)
        assert pipe.num_stages == 3
        stage = build_stage(pipe.get_stage_module(rank), rank, pipe.info(), CPU)
        schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_fn)
        losses = step(schedule, first=rank == 0, last=rank == 2)
        grads = [p.grad for p in stage.submod.parameters() if p.grad is not None]
        return [loss.item() for loss in losses], grads

    found = phalanx.run(program, ranks=3)
    loss, wanted = whole(3)
    assert sum(found[2][0]) / 4 == pytest.approx(loss, abs=TOLERANCE)
    for rank, (_, grads) in enumerate(found):
        of_stage = [value for name, value in wanted.items() if name.startswith(str(rank))]
        assert len(grads) == len(of_stage)
        for got, want in zip(grads, of_stage, strict=True):
            torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


def test_pipeline_of_replicas() -> None:
    """Two pipelines of two stages; each stage and its replica are one DDP model."""

    def program() -> dict[str, Tensor]:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
        number, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
        module = layers(2)[number]
        wrapped = DDP(module, process_group=mesh.get_group("dp"))
        stage = PipelineStage(wrapped, number, 2, CPU, group=mesh.get_group("pp"))
        schedule = Schedule1F1B(stage, n_microbatches=3, loss_fn=loss_fn)
        inputs, targets = (each.chunk(2)[replica] for each in data())
        if number == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)
        return gradients({number: module})

    _, wanted = whole(2)
    for rank, got in enumerate(phalanx.run(program, ranks=4)):
        stage = str(rank % 2)
        assert_same([got], {name: g for name, g in wanted.items() if name[0] == stage})


def test_stages_of_other_shapes() -> None:
    """Shapes of what flows are found out by running, and change at the seams."""

    def parts() -> list[nn.Module]:
        return [
            make(nn.Linear, WIDTH, 9, seed=1),
            make(nn.Linear, 9, 3, seed=2),
            make(nn.Linear, 3, WIDTH, seed=3),
        ]

    def program() -> tuple[list[Tensor], dict[str, Tensor]]:
        rank = dist.get_rank()
        module = parts()[rank]
        stage = PipelineStage(module, rank, 3, CPU)
        schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss_fn)
        losses = step(schedule, first=rank == 0, last=rank == 2)
        return losses, gradients({rank: module})

    each = parts()
    inputs, targets = data()
    loss_fn(nn.Sequential(*each)(inputs), targets).backward()
    wanted = gradients(dict(enumerate(each)))
    for rank, (_, got) in enumerate(phalanx.run(program, ranks=3)):
        assert_same([got], {name: g for name, g in wanted.items() if name[0] == str(rank)})
