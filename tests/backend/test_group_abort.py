"""Aborting groups, and making new ones with those that are left."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import phalanx
from phalanx.errors import RankFailedError


def total(**group: Any) -> float:
    tensor = torch.ones(1)
    dist.all_reduce(tensor, **group)
    return tensor.item()


def aborted_by_method() -> tuple[float, bool]:
    group: Any = dist.group.WORLD
    group.abort()
    found = total(), dist.is_initialized()
    dist.barrier()
    return found


def aborted_by_torch() -> tuple[bool, str]:
    dist.barrier()
    c10d._abort_process_group()
    try:
        dist.all_reduce(torch.ones(1))
    except ValueError as error:
        return dist.is_initialized(), str(error).partition(",")[0]
    return dist.is_initialized(), "passed"


def pending_while_aborted() -> float:
    group: Any = dist.group.WORLD
    tensor = torch.ones(1)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        group.abort()
        work.wait()
    else:
        dist.all_reduce(tensor)
    return tensor.item()


def shrunk() -> str:
    if not hasattr(dist, "shrink_group"):  # torch 2.11 may not have it
        return "Process group backend for '0' does not support shrinking operations."
    with pytest.raises(TypeError) as caught:
        dist.shrink_group([1])
    return str(caught.value)


@pytest.mark.parametrize(
    "program", [aborted_by_method, aborted_by_torch, pending_while_aborted, shrunk]
)
def test_gloo_aborts_nothing(program: Callable[[], Any]) -> None:
    ours = phalanx.run(program, ranks=3)
    with phalanx.World(ranks=3, engine="processes", timeout=30) as world:
        assert ours == world.run(program)


def test_nccl_ends_what_is_in_flight_in_another_thread() -> None:
    def body() -> tuple[str, str]:
        group: Any = dist.group.WORLD
        if dist.get_rank() == 1:
            time.sleep(60.0)
            return "", ""
        watcher = threading.Timer(5.0, group.abort)
        watcher.start()
        with pytest.raises(dist.DistBackendError) as first:
            dist.barrier()
        with pytest.raises(dist.DistBackendError) as second:
            dist.barrier()
        watcher.join()
        return str(first.value), str(second.value)

    found = phalanx.run(body, ranks=3, backend="nccl", clock="virtual")
    text = "NCCL communicator was aborted on rank {}."
    assert found == [(text.format(rank),) * 2 if rank != 1 else ("", "") for rank in range(3)]


def again(place: str, size: int, rank: int) -> float:
    dist.init_process_group(
        "gloo",
        init_method=place,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    found = total()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("how", ["destroy", "abort"])
def test_survivors_make_a_group_of_their_own(how: str) -> None:
    """The rank that fails leaves without a word; the others get an error, agree on who is
    there through a store that outlives groups, and go on."""
    lobby = dist.HashStore()

    def body() -> tuple[list[int], float]:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        total()
        if rank == 1:
            return [], 0.0
        with pytest.raises(RuntimeError):
            total()
        if how == "abort":
            c10d._abort_process_group()
        else:
            dist.destroy_process_group()
        lobby.set(f"alive/{rank}", "")
        dist.HashStore.wait(lobby, [f"alive/{other}" for other in (0, 2, 3)])
        alive = [other for other in range(4) if lobby.check([f"alive/{other}"])]
        os.environ["MASTER_PORT"] = "29600"
        found = again("env://", len(alive), alive.index(rank))
        store = dist.PrefixStore("second", lobby)
        dist.init_process_group("gloo", store=store, rank=alive.index(rank), world_size=3)
        assert total() == 3.0
        return alive, found

    found = phalanx.run(body, ranks=4, init=False, checks="all,-leak")
    assert found == [([0, 2, 3], 3.0), ([], 0.0), ([0, 2, 3], 3.0), ([0, 2, 3], 3.0)]


def test_a_group_that_was_aborted_is_no_leak_and_leaves_nothing() -> None:
    def body() -> None:
        for _ in range(3):
            dist.init_process_group("gloo")
            total()
            c10d._abort_process_group()

    with phalanx.World(ranks=2, init=False, strict=True) as world:
        world.run(body)


def test_others_are_told_who_has_aborted() -> None:
    def body() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            c10d._abort_process_group()
        else:
            dist.barrier()

    with pytest.raises((phalanx.DeadlockError, RankFailedError), match="rank 1"):
        phalanx.run(body, ranks=3)
