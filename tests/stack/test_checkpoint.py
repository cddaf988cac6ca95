"""Distributed checkpoint: save, load and asynchronous save, also into another world size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import phalanx
from tests.stack.training import (
    DDP,
    SCHEDULES,
    assert_same,
    make,
    train,
    trained_alone,
    weights,
)

# torch's about its own use of an old storage class, in every save and load
pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable"),
]


def numbers(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def spread(placements: list[Placement], shape: tuple[int, ...] = (7, 5)) -> DTensor:
    sizes = (dist.get_world_size(),) if len(placements) == 1 else (2, 2)
    return distribute_tensor(numbers(*shape), init_device_mesh("cpu", sizes), placements)


def save(path: Path, placements: list[Placement]) -> None:
    state = {
        "table": spread(placements),
        "plain": torch.tensor([1.0, 2.0]),
        "step": 12,
        "nested": {"names": ["a", "b"], "rank 0's": torch.ones(3)},
    }
    dcp.save(state, checkpoint_id=path)


def load(path: Path, placements: list[Placement]) -> dict[str, Any]:
    mesh_shape = spread(placements)
    state: dict[str, Any] = {
        "table": torch.zeros_like(mesh_shape),
        "plain": torch.zeros(2),
        "step": 0,
        "nested": {"names": [], "rank 0's": torch.zeros(3)},
    }
    dcp.load(state, checkpoint_id=path)
    state["table"] = state["table"].full_tensor()
    return state


def check(found: list[dict[str, Any]]) -> None:
    for state in found:
        assert torch.equal(state["table"], numbers(7, 5))
        assert torch.equal(state["plain"], torch.tensor([1.0, 2.0]))
        assert state["step"] == 12
        assert state["nested"]["names"] == ["a", "b"]
        assert torch.equal(state["nested"]["rank 0's"], torch.ones(3))


@pytest.mark.parametrize(
    ("before", "ranks_before", "after", "ranks_after"),
    [
        ([Shard(0)], 2, [Shard(0)], 2),
        ([Shard(0)], 4, [Shard(0)], 2),
        ([Shard(0)], 3, [Shard(1)], 5),
        ([Shard(1)], 2, [Replicate()], 3),
        ([Replicate()], 2, [Shard(0)], 4),
        ([Shard(0), Shard(1)], 4, [Shard(0)], 3),
        ([Replicate(), Shard(0)], 4, [Shard(1), Shard(0)], 4),
    ],
)
def test_save_and_load_into_another_world(
    tmp_path: Path, before: Any, ranks_before: int, after: Any, ranks_after: int
) -> None:
    phalanx.run(save, tmp_path, before, ranks=ranks_before)
    check(phalanx.run(load, tmp_path, after, ranks=ranks_after))


@pytest.mark.parametrize("seed", SCHEDULES)
def test_save_under_other_schedules(tmp_path: Path, seed: int) -> None:
    phalanx.run(save, tmp_path, [Shard(0)], ranks=3, seed=seed)
    check(phalanx.run(load, tmp_path, [Shard(0)], ranks=3, seed=seed))


def test_save_is_read_without_ranks(tmp_path: Path) -> None:
    phalanx.run(save, tmp_path / "dcp", [Shard(0)], ranks=3)
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "one.pt")
    state = torch.load(tmp_path / "one.pt", weights_only=False)
    assert torch.equal(state["table"], numbers(7, 5))
    torch_save_to_dcp(tmp_path / "one.pt", tmp_path / "again")
    check(phalanx.run(load, tmp_path / "again", [Shard(1)], ranks=2))


@pytest.mark.parametrize(
    "kind",
    [
        AsyncCheckpointerType.THREAD,
        pytest.param(AsyncCheckpointerType.PROCESS, marks=pytest.mark.slow),
    ],
    ids=lambda kind: kind.name,
)
def test_async_save(tmp_path: Path, kind: AsyncCheckpointerType) -> None:
    """What is changed after the call is not in the checkpoint."""

    def program() -> bool:
        group = dist.new_group(backend="gloo")
        table = spread([Shard(0)])
        state = {
            "table": table,
            "plain": torch.tensor([1.0, 2.0]),
            "step": 12,
            "nested": {"names": ["a", "b"], "rank 0's": torch.ones(3)},
        }
        handle: Any = dcp.async_save(
            state,
            checkpoint_id=tmp_path,
            process_group=group,
            async_checkpointer_type=kind,
        )
        table.to_local().zero_()
        value = torch.ones(1)
        dist.all_reduce(value)
        handle.result()
        return bool(value == dist.get_world_size())

    assert phalanx.run(program, ranks=2) == [True, True]
    check(phalanx.run(load, tmp_path, [Shard(1)], ranks=3))


def test_async_saves_one_after_the_other(tmp_path: Path) -> None:
    def program() -> None:
        group = dist.new_group(backend="gloo")
        last: Any = None
        for number in range(3):
            if last is not None:
                last.result()
            state = {"t": spread([Shard(0)]) + number}
            last = dcp.async_save(
                state, checkpoint_id=tmp_path / str(number), process_group=group
            )
        last.result()

    def read(number: int) -> Tensor:
        state: dict[str, Any] = {"t": torch.zeros_like(spread([Shard(0)]))}
        dcp.load(state, checkpoint_id=tmp_path / str(number))
        result: Tensor = state["t"].full_tensor()
        return result

    phalanx.run(program, ranks=2)
    for number in range(3):
        for got in phalanx.run(read, number, ranks=3):
            assert torch.equal(got, numbers(7, 5) + number)


@pytest.mark.slow
def test_async_saves_by_a_process(tmp_path: Path) -> None:
    """Twice: the second save finds the background process of its own rank."""

    def program() -> None:
        group = dist.new_group(backend="gloo")
        for number in range(2):
            handle: Any = dcp.async_save(
                {"t": spread([Shard(0)]) + number},
                checkpoint_id=tmp_path / str(number),
                process_group=group,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )
            handle.result()

    def read(number: int) -> Tensor:
        state: dict[str, Any] = {"t": torch.zeros_like(spread([Shard(0)]))}
        dcp.load(state, checkpoint_id=tmp_path / str(number))
        result: Tensor = state["t"].full_tensor()
        return result

    phalanx.run(program, ranks=2)
    for number in range(2):
        for got in phalanx.run(read, number, ranks=2):
            assert torch.equal(got, numbers(7, 5) + number)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def fsdp2() -> Any:
    model = make()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh)
    return model


def ddp() -> Any:
    return DDP(make())


@pytest.mark.parametrize(
    ("first", "ranks", "second", "more"),
    [(fsdp2, 3, fsdp2, 2), (ddp, 2, fsdp2, 4), (fsdp2, 2, ddp, 3)],
)
def test_training_goes_on_in_another_world(
    tmp_path: Path, first: Any, ranks: int, second: Any, more: int
) -> None:
    """Model and optimiser, from one kind of parallelism and number of ranks to another."""

    def begin() -> None:
        model = first()
        optimizer = adam(model.parameters())
        train(model, optimizer, steps=range(2))
        state, moments = get_state_dict(model, optimizer)
        dcp.save({"model": state, "optimizer": moments}, checkpoint_id=tmp_path)

    def resume() -> dict[str, Tensor]:
        model = second()
        optimizer = adam(model.parameters())
        state, moments = get_state_dict(model, optimizer)
        both = {"model": state, "optimizer": moments}
        dcp.load(both, checkpoint_id=tmp_path)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=both["model"],
            optim_state_dict=both["optimizer"],
        )
        train(model, optimizer, steps=range(2, 4))
        return weights(model)

    phalanx.run(begin, ranks=ranks)
    assert_same(phalanx.run(resume, ranks=more), trained_alone(optimizer=adam, steps=4))


class Progress:
    """An object that knows how to save itself."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def test_stateful_objects(tmp_path: Path) -> None:
    def program() -> int:
        progress = Progress()
        progress.done = 41
        dcp.save({"progress": progress}, checkpoint_id=tmp_path)
        again = Progress()
        dcp.load({"progress": again}, checkpoint_id=tmp_path)
        return again.done

    assert phalanx.run(program, ranks=2) == [41, 41]


def test_a_missing_key_is_an_error_on_every_rank(tmp_path: Path) -> None:
    phalanx.run(save, tmp_path, [Shard(0)], ranks=2)

    def program() -> str:
        try:
            dcp.load({"missing": torch.zeros(1)}, checkpoint_id=tmp_path)
        except dcp.CheckpointException as error:
            return str(error)
        raise AssertionError("no error")

    for text in phalanx.run(program, ranks=2):
        assert "missing" in text


def test_a_disk_that_fails_is_an_error_on_every_rank(tmp_path: Path) -> None:
    class Broken(dcp.FileSystemWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            if dist.get_rank() == 1:
                raise OSError("the disk of rank 1 is full")
            return super().write_data(plan, planner)

    def program() -> str:
        try:
            dcp.save({"t": spread([Shard(0)])}, storage_writer=Broken(tmp_path))
        except dcp.CheckpointException as error:
            return str(error)
        raise AssertionError("no error")

    for text in phalanx.run(program, ranks=2):
        assert "the disk of rank 1 is full" in text


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    phalanx.run(save, tmp_path, [Shard(0)], ranks=3)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"]
