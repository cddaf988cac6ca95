"""What torch assumes of a process, met inside ranks: split groups, NCCL, threads, late
modules."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d

import phalanx


def split() -> tuple[str, ...]:
    """`split_group` of the group itself; `dist.split_group` wants an accelerator."""
    world: Any = dist.group.WORLD
    part = world.split_group([0, 2], group_name="evens", group_desc="the even ones")
    if part is None:
        return ()
    tensor = torch.tensor([float(dist.get_rank())])
    part.allreduce([tensor]).wait()
    inner = part.split_group([1])
    return (
        str(tensor.item()),
        f"{part.rank()}/{part.size()}",
        part.group_name,
        part.group_desc,
        "" if inner is None else f"{inner.rank()}/{inner.size()}",
    )


def on_gloo(program: Callable[[], Any], ranks: int) -> list[Any]:
    """Gloo's groups sometimes never come to connect, also without us: of 25 plain processes
    that split a group so, 6 hung and 6 took 5 s (torch 2.13, two cores). Four attempts."""
    for _ in range(3):
        with suppress(phalanx.StallError):
            return phalanx.run(program, ranks=ranks, engine="processes", timeout=8)
    return phalanx.run(program, ranks=ranks, engine="processes", timeout=8)


@pytest.mark.slow  # by luck: see `on_gloo`
def test_split_group_as_on_gloo() -> None:
    ours = phalanx.run(split, ranks=3, backend="gloo")
    assert ours == on_gloo(split, ranks=3)
    assert ours[1] == ()
    assert ours[2] == ("2.0", "1/2", "evens", "the even ones", "0/1")


def refused_split() -> str:
    with pytest.raises(RuntimeError, match="split") as caught:
        dist.split_group(split_ranks=[[0], [1]])
    return str(caught.value)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="refused without one")
def test_dist_split_group_is_refused_without_an_accelerator_as_on_gloo() -> None:
    ours = phalanx.run(refused_split, ranks=2, backend="gloo")
    assert ours == phalanx.run(refused_split, ranks=2, engine="processes", backend="gloo")


@pytest.mark.skipif(torch.cuda.is_available(), reason="about builds and machines without")
def test_nccl_is_there_for_ranks_and_takes_no_cpu_tensors() -> None:
    available = distributed_c10d.is_nccl_available

    def body() -> tuple[str, str, bool]:
        dist.init_process_group("nccl")
        with pytest.raises(RuntimeError, match="cpu"):
            dist.all_reduce(torch.ones(2))
        found = dist.get_backend(), str(dist.get_backend_config()), dist.is_nccl_available()
        dist.destroy_process_group()
        return found

    found = phalanx.run(body, ranks=2, init=False)
    assert found == [("nccl", "cuda:nccl", available())] * 2
    assert distributed_c10d.is_nccl_available is available


def test_a_thread_finds_groups_made_after_it_started() -> None:
    """Functional collectives look a group up by name, in the map of their own thread."""

    def body() -> list[float]:
        groups: queue.Queue[Any] = queue.Queue()
        found: list[float] = []

        def work() -> None:
            result = functional.all_reduce(torch.ones(1), "sum", groups.get())
            found.append(result.item())

        thread = threading.Thread(target=work)
        thread.start()
        groups.put(dist.new_group())
        thread.join()
        return found

    assert phalanx.run(body, ranks=2) == [[2.0], [2.0]]


def debug_levels() -> list[str]:
    rank = dist.get_rank()
    names: Any = dist
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "detail" if rank else "INFO"
    names.set_debug_level_from_env()
    dist.barrier()
    levels = [str(names.get_debug_level())]
    if rank:
        names.set_debug_level(names.DebugLevel.OFF)
    dist.barrier()
    levels.append(str(names.get_debug_level()))
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "LOUD"
    with pytest.raises(ValueError, match="OFF, INFO,"):
        names.set_debug_level_from_env()
    return levels


def test_each_rank_has_its_own_debug_level_as_on_gloo() -> None:
    names: Any = dist
    before = names.get_debug_level()
    ours = phalanx.run(debug_levels, ranks=2)
    assert ours == phalanx.run(debug_levels, ranks=2, engine="processes")
    assert ours == [["DebugLevel.INFO"] * 2, ["DebugLevel.DETAIL", "DebugLevel.OFF"]]
    assert names.get_debug_level() == before
