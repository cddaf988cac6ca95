"""Reports name what a reader knows: DDP's parameters, FSDP2's modules, a pipeline's stages."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import phalanx


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(4, 4)
        self.fc2 = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, short: bool = False) -> torch.Tensor:
        x = self.fc1(x)
        return x if short else self.fc2(x)


def told(program: object, ranks: int = 3) -> str:
    """The whole report in one line."""
    with pytest.raises(phalanx.PhalanxError) as caught:
        phalanx.run(program, ranks=ranks)  # type: ignore[arg-type]
    return " ".join(str(caught.value).split())


def step(model: torch.nn.Module, **how: bool) -> None:
    model(torch.ones(2, 4), **how).sum().backward()


def test_parameters_without_a_gradient_on_one_rank() -> None:
    def program() -> None:
        model = DistributedDataParallel(Net())
        step(model, short=dist.get_rank() == 1)
        dist.all_reduce(torch.ones(1))

    text = told(program)
    lacking = 'rank 1 has no gradient for "fc2.weight", "fc2.bias" of the DDP model'
    assert f"gradient {lacking}; ranks 0, 2 have one" in text
    assert 'bucket float32[40] has the size of DDP\'s gradients of "fc1.weight"' in text


def test_parameters_that_torch_gives_by_number() -> None:
    def program() -> None:
        model = DistributedDataParallel(Net())
        for _ in range(2):
            step(model, short=True)

    expected = 'no rank had a gradient for "fc2.weight", "fc2.bias" of the DDP model'
    assert expected in told(program)


class Either(torch.nn.Module):
    """Uses one of two layers, so the ranks lack different parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return self.second(x) if number else self.first(x)


def test_each_rank_lacks_other_parameters() -> None:
    def program() -> None:
        model = DistributedDataParallel(Either())
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(1, 2), dist.get_rank() % 2).sum().backward()

    text = told(program)
    lacking = 'had no gradient for "{0}.weight", "{0}.bias" of the DDP model'
    assert f"gradient ranks 0, 2 {lacking.format('second')}" in text
    assert f"gradient rank 1 {lacking.format('first')}" in text


def test_a_rank_in_backward_is_not_said_to_lack_gradients() -> None:
    def program() -> None:
        model = DistributedDataParallel(Net())
        if dist.get_rank() == 0:
            dist.barrier()
        else:
            step(model)

    text = told(program)
    assert "gradient " not in text
    assert "bucket float32[40]" in text


def test_the_module_that_fsdp_gathers() -> None:
    def program() -> None:
        model = Net()
        for part in (model.fc1, model.fc2, model):
            fully_shard(part)
        if dist.get_rank() == 0:
            model(torch.ones(2, 4))
        dist.barrier()

    text = told(program, ranks=2)
    assert (
        'module rank 0: FSDP\'s parameters of module "fc1" ("fc1.weight", "fc1.bias")' in text
    )


def test_the_stage_and_the_microbatch_of_a_pipeline() -> None:
    def program() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        stage = PipelineStage(torch.nn.Linear(4, 4), rank, size, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
        if rank == 1:
            schedule.step(target=torch.ones(4, 4))
            return
        for _ in range(2):
            schedule.step(torch.ones(4, 4))

    text = told(program, ranks=2)
    assert "stage rank 0: at stage 0, microbatch 1 forward, microbatch 0 backward" in text


def test_nothing_is_kept_of_a_model_that_is_gone() -> None:
    def program() -> None:
        step(DistributedDataParallel(Net()))
        if dist.get_rank():
            dist.barrier()

    assert "DDP" not in told(program)


def test_groups_of_a_mesh_have_the_name_of_their_dimension() -> None:
    def program() -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        name = "tp" if dist.get_rank() else "dp"
        dist.all_reduce(torch.ones(1), group=mesh.get_group(name))
        dist.destroy_process_group()

    text = told(program, ranks=4)
    assert ': mesh_tp" (ranks 0, 1)' in text and ': mesh_dp"' in text


def test_a_group_has_the_name_that_the_program_gave_it() -> None:
    def program() -> None:
        group = dist.new_group([0, 1], group_desc="readers")
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(1 + dist.get_rank()), group=group)

    assert 'group "group 1: readers" (ranks 0, 1)' in told(program)


def test_a_missing_gradient_is_told_once() -> None:
    def program() -> None:
        model = DistributedDataParallel(Net())
        for number in range(3):
            step(model, short=number == 1 and dist.get_rank() == 1)

    text = told(program, ranks=2)
    assert text.count('no gradient for "fc2.weight", "fc2.bias" of the DDP model') == 1
