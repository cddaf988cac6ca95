"""Ranks as processes: how they meet for a group that the program makes by `env://`."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.running.processes.engine import ProcessesEngine, ProcessSettings

GLOO: dict[str, Any] = {
    "engine": "processes",
    "backend": "gloo",
    "timeout": 60.0,
    "init": False,
}


# -- what runs in the ranks ---------------------------------------------------------------


def total() -> float:
    tensor = torch.full((2,), float(os.environ["RANK"]))
    dist.all_reduce(tensor)
    return float(tensor[0])


def groups_after_each_other(times: int, late: int) -> list[float]:
    """The rank `late` is, a little, for each."""
    seen = []
    for _ in range(times):
        if int(os.environ["RANK"]) == late:
            time.sleep(0.02)
        dist.init_process_group("gloo")
        seen.append(total())
        dist.destroy_process_group()
    return seen


def number_in_group(**given: Any) -> tuple[int, float]:
    dist.init_process_group("gloo", **given)
    found = dist.get_rank(), total()
    dist.destroy_process_group()
    return found


def count_from_the_end() -> tuple[int, float]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return number_in_group(rank=size - 1 - rank, world_size=size)


def without_the_last() -> tuple[int, float] | None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == size - 1:
        return None
    return number_in_group(rank=rank, world_size=size - 1)


def at_another_port(port: int) -> tuple[int, float, bool]:
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), total()
    served = socket.create_connection(("127.0.0.1", port), timeout=5)
    served.close()
    dist.barrier()
    dist.destroy_process_group()
    return rank, found, True


def comes_alone(who: int) -> str:
    if int(os.environ["RANK"]) != who:
        return ""
    with pytest.raises(dist.DistStoreError) as caught:
        dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    return str(caught.value)


def in_a_child() -> int:
    """A child that is forked is no rank, but may take its place for a group."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if number_in_group()[1] == 1.0 else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def stores_of_two_meetings() -> list[bool]:
    """Whether each is empty, asked before anything is written there."""
    found, kept = [], []
    for _ in range(2):
        store, rank, size = next(dist.rendezvous("env://"))
        found.append(not store.check(["mine"]))
        everyone = store.add("asked", 1)
        while everyone < size:
            time.sleep(0.01)
            everyone = store.add("asked", 0)
        store.set("mine", str(rank))
        kept.append(store)
    return found


# -- tests --------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("checks", ["all", "none"])
def test_a_rank_may_be_late_for_each_of_many_groups(late: int, checks: str) -> None:
    with phalanx.World(ranks=2, checks=checks, **GLOO) as world:
        assert world.run(groups_after_each_other, 8, late) == [[1.0] * 8] * 2
        assert world.run(groups_after_each_other, 2, late) == [[1.0] * 2] * 2


def test_a_program_may_number_its_ranks_itself() -> None:
    with phalanx.World(ranks=3, **GLOO) as world:
        assert world.run(count_from_the_end) == [(2, 3.0), (1, 3.0), (0, 3.0)]
        assert world.run(number_in_group) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_some_of_the_ranks_meet_at_the_address_that_all_were_given() -> None:
    with phalanx.World(ranks=3, **GLOO) as world:
        assert world.run(without_the_last) == [(0, 1.0), (1, 1.0), None]
        assert world.run(number_in_group) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_an_address_that_the_program_chose_is_served_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with phalanx.World(ranks=2, **GLOO) as world:
        assert world.run(at_another_port, port) == [(0, 1.0, True), (1, 1.0, True)]


def test_an_address_in_the_environment_of_the_run_is_served_there(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MASTER_PORT", str(port))
    with phalanx.World(ranks=2, **GLOO) as world:
        assert world.run(at_another_port, port) == [(0, 1.0, True), (1, 1.0, True)]


def test_who_waits_in_vain_is_told_how_many_came_and_the_next_call_is_not_to_blame() -> None:
    settings = ProcessSettings(ranks=2, backend="gloo", timeout=60, init=False)
    engine = ProcessesEngine(settings)
    try:
        told = engine.call(comes_alone, (0,), fresh=True)
        assert told == [
            "Timed out after 1 seconds waiting for all ranks at env://: 1 of 2 came",
            "",
        ]
        assert engine.call(number_in_group, fresh=True) == [(0, 1.0), (1, 1.0)]
    finally:
        engine.close()


def test_children_that_are_forked_meet_each_other() -> None:
    assert phalanx.run(in_a_child, ranks=2, **GLOO) == [0, 0]


def test_each_meeting_has_a_store_of_its_own() -> None:
    assert phalanx.run(stores_of_two_meetings, ranks=2, **GLOO) == [[True, True]] * 2
