"""`monitored_barrier`: who is missing is said by the first rank, in Gloo's words."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx

SOON = timedelta(milliseconds=200)


def barrier_without(
    absent: list[int], wait_all_ranks: bool, limit: timedelta
) -> tuple[str, str] | None:
    if dist.get_rank() in absent:
        return None
    try:
        dist.monitored_barrier(timeout=limit, wait_all_ranks=wait_all_ranks)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        text = first.partition(" in ")[0] if dist.get_rank() == 0 else first
        said = text.removeprefix(f"[Rank {dist.get_rank()}]: ")
        return said.partition(" from rank 0")[0], type(error).__mro__[-4].__name__
    return "passed", ""


@pytest.mark.parametrize("wait_all_ranks", [False, True])
@pytest.mark.parametrize("absent", [[], [1], [2], [1, 2], [1, 2, 3]], ids=str)
def test_the_first_rank_says_who_is_missing_as_on_gloo(
    absent: list[int], wait_all_ranks: bool
) -> None:
    given = absent, wait_all_ranks, SOON
    ours = phalanx.run(barrier_without, *given, ranks=4, backend="gloo")
    with phalanx.World(ranks=4, engine="processes", backend="gloo", timeout=30) as world:
        assert ours == world.run(barrier_without, *given)
    if absent:
        named = ", ".join(map(str, absent if wait_all_ranks else absent[:1]))
        who = "Ranks" if wait_all_ranks else "Rank"
        assert ours[0] == (f"{who} {named} failed to pass monitoredBarrier", "RuntimeError")


def test_time_does_not_have_to_pass() -> None:
    ours = phalanx.run(
        barrier_without,
        [1],
        False,
        timedelta(minutes=25),
        ranks=3,
        backend="gloo",
        clock="virtual",
    )
    assert ours[0] == ("Rank 1 failed to pass monitoredBarrier", "RuntimeError")


def test_nothing_is_left_for_what_comes_after() -> None:
    def body() -> float:
        barrier_without([1], False, SOON)
        group = dist.new_group()
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        return tensor.item()

    assert phalanx.run(body, ranks=3, backend="gloo") == [3.0] * 3


def test_a_timeout_of_nothing() -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            group: Any = dist.group.WORLD
            with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier"):
                group.monitored_barrier(timedelta(0))

    phalanx.run(body, ranks=2, backend="gloo")


def test_only_a_backend_named_gloo_has_it() -> None:
    def body() -> None:
        with pytest.raises(ValueError, match="GLOO"):
            dist.monitored_barrier()

    phalanx.run(body, ranks=2, backend="nccl")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_error_that_names_who_is_missing_comes_first(seed: int) -> None:
    def program() -> None:
        if dist.get_rank() != 2:
            dist.monitored_barrier(timeout=timedelta(seconds=5))

    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(program, ranks=4, backend="gloo", clock="virtual", seed=seed)
    assert str(caught.value).startswith(
        "rank 0 raised OpTimeoutError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in"
    )


def late_barrier(late: list[int]) -> list[str]:
    """What the calls of a rank came to, the late ones beginning after the others gave up."""
    limit, said = timedelta(seconds=0.3), []
    rank = dist.get_rank()
    if rank in late:
        time.sleep(1.0)
    for _ in range(2):
        try:
            dist.monitored_barrier(timeout=limit)
            said.append("passed")
        except RuntimeError as error:
            text = str(error)
            known = ("failed to pass", "successfully reached", "closed by peer", "pair closure")
            said.append(next((each for each in known if each in text), text))
    time.sleep(1.0)  # or the others would see its end
    return said


@pytest.mark.parametrize("late", [[1], [1, 2]], ids=str)
def test_who_comes_late_finds_the_connections_closed_as_on_gloo(late: list[int]) -> None:
    ours = phalanx.run(late_barrier, late, ranks=4, clock="virtual")
    with phalanx.World(ranks=4, engine="processes", timeout=30) as world:
        assert ours == world.run(late_barrier, late)
    assert ours[0] == ["failed to pass", "pair closure"]
    assert ours[1] == ["closed by peer", "closed by peer"]
    assert ours[3] == ["successfully reached", "closed by peer"]


def test_a_new_group_and_messages_between_others_work_after_it() -> None:
    def body() -> float:
        rank, tensor = dist.get_rank(), torch.ones(1)
        late_barrier([1])
        with pytest.raises(RuntimeError, match=r"closed by peer|pair closure"):
            dist.all_reduce(tensor)
        if rank == 1:
            dist.send(tensor * 5, 2)
        if rank == 2:
            dist.recv(tensor, 1)
        group = dist.new_group()
        dist.all_reduce(tensor, group=group)
        return tensor.item()

    assert phalanx.run(body, ranks=3, clock="virtual") == [7.0] * 3


def test_a_first_rank_that_is_late_finds_them_closed() -> None:
    ours = phalanx.run(late_barrier, [0], ranks=3, clock="virtual")
    assert ours[0] == ["closed by peer", "closed by peer"]
    assert {each[1] for each in ours[1:]} <= {"closed by peer", "pair closure"}
