"""Programs of all kinds in one process, one after the other, also after failures: each gives
what it gave alone, and nothing of it stays."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import mse_loss

import phalanx
from tests.stack.training import (
    DDP,
    SCHEDULES,
    assert_same,
    batch,
    make,
    sgd,
    shared_batch,
    train,
    weights,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def ddp() -> dict[str, Tensor]:
    model = DDP(make())
    train(model, sgd(model.parameters()))
    return weights(model)


def fsdp1() -> dict[str, Tensor]:
    model = FullyShardedDataParallel(make(), device_id=torch.device("cpu"))
    train(model, sgd(model.parameters()))
    with FullyShardedDataParallel.summon_full_params(model):
        return {name: p.detach().clone() for name, p in model.named_parameters()}


def fsdp2() -> dict[str, Tensor]:
    model: Any = make()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    train(model, sgd(model.parameters()))
    return weights(model)


def tensor_parallel() -> dict[str, Tensor]:
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    model = parallelize_module(make(), init_device_mesh("cpu", (2,)), plan)
    train(model, sgd(model.parameters()), data=batch)
    return weights(model)


def pipelined() -> dict[str, Tensor]:
    rank, model = dist.get_rank(), make()
    module = nn.Sequential(model.first, nn.Tanh()) if rank == 0 else model.second
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule: Any = Schedule1F1B(stage, n_microbatches=4, loss_fn=mse_loss)
    inputs, targets = batch(0)
    schedule.step(inputs) if rank == 0 else schedule.step(target=targets)
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def randomly() -> dict[str, Tensor]:
    """Dropout in every step, from each rank's own generator."""
    torch.manual_seed(40 + dist.get_rank())
    model = DDP(nn.Sequential(make(), nn.Dropout(0.5)))
    train(model, sgd(model.parameters()))
    return weights(model)


PROGRAMS: list[Callable[[], dict[str, Tensor]]] = [
    ddp,
    fsdp1,
    fsdp2,
    tensor_parallel,
    pipelined,
    randomly,
]


def fail_in_backward() -> None:
    model = DDP(make())
    inputs, targets = shared_batch(0)
    out = model(inputs)
    if dist.get_rank() == 1:
        out.register_hook(lambda grad: 1 / 0)
    mse_loss(out, targets).backward()


def fail_inside_patches() -> None:
    with loss_parallel():
        dist.barrier()
        if dist.get_rank() == 0:
            raise ZeroDivisionError
        dist.barrier()


def never_meet() -> None:
    if dist.get_rank() == 0:
        DDP(make())


FAILURES = [fail_in_backward, fail_inside_patches, never_meet]


def test_the_same_again_and_again() -> None:
    first = {program: phalanx.run(program, ranks=2) for program in PROGRAMS}
    threads = threading.active_count()
    attention, handlers = F.scaled_dot_product_attention, _handlers()
    order = random.Random(0)
    for _ in range(3):
        sequence: list[Callable[[], Any]] = [*PROGRAMS, *FAILURES]
        order.shuffle(sequence)
        for program in sequence:
            if program in FAILURES:
                with pytest.raises(phalanx.PhalanxError):
                    phalanx.run(program, ranks=2)
                continue
            found = phalanx.run(program, ranks=2)
            for got, wanted in zip(found, first[program], strict=True):
                assert_same([got], wanted, tolerance=0)
    assert threading.active_count() <= threads
    assert F.scaled_dot_product_attention is attention
    assert _handlers() == handlers
    assert not dist.is_initialized()


def _handlers() -> dict[Any, Any]:
    from torch.distributed.tensor import DTensor

    found: dict[Any, Any] = dict(DTensor._op_dispatcher._custom_op_handlers)
    return found


@pytest.mark.parametrize("seed", SCHEDULES)
def test_the_schedule_changes_nothing(seed: int) -> None:
    for program in PROGRAMS:
        usual, other = phalanx.run(program, ranks=2), phalanx.run(program, ranks=2, seed=seed)
        for got, wanted in zip(other, usual, strict=True):
            assert_same([got], wanted, tolerance=0)


def test_all_of_them_in_one_world(tmp_path: Path) -> None:
    """Groups, meshes and checkpoints of many models side by side in one program."""

    def program() -> list[dict[str, Tensor]]:
        found = [each() for each in PROGRAMS]
        state = {f"{number}": dict(each) for number, each in enumerate(found)}
        dcp.save(state, checkpoint_id=tmp_path)
        again = {
            key: {name: torch.zeros_like(value) for name, value in each.items()}
            for key, each in state.items()
        }
        dcp.load(again, checkpoint_id=tmp_path)
        assert_same([again["0"]], found[0], tolerance=0)
        return found

    together = phalanx.run(program, ranks=2)
    for number, each in enumerate(PROGRAMS):
        for rank, wanted in enumerate(phalanx.run(each, ranks=2)):
            assert_same([together[rank][number]], wanted, tolerance=0)
