"""What shows that ranks which are processes have not come to a standstill."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import phalanx
from phalanx.engines.remote.control_messages import HowFar, Progress
from phalanx.engines.remote.link import current
from phalanx.engines.standstill import Standstill
from phalanx.model import Tally

BEAT, BEATS = 0.25, 16
LIMIT = 2.0


def all_reduce(number: int) -> None:
    dist.all_reduce(torch.ones(2))


def all_reduce_later(number: int) -> None:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    work.wait()


def message(number: int) -> None:
    tensor, rank = torch.ones(2), dist.get_rank()
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)


def message_later(number: int) -> None:
    tensor, rank = torch.ones(2), dist.get_rank()
    work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)
    assert work is not None
    work.wait()


def key(number: int) -> None:
    _get_default_store().set(f"key {number} of {dist.get_rank()}", "")


def output(number: int) -> None:
    print(number)


CALLS = (all_reduce, all_reduce_later, message, message_later, key)


def look_in_vain() -> None:
    _get_default_store().check(["nobody sets this"])


def moves(act: Callable[[], Any]) -> bool:
    line = current()
    assert line is not None
    before = line.moved_at
    time.sleep(0.001)
    act()
    return line.moved_at > before


def which_moves() -> dict[str, bool]:
    moved = {act.__name__: moves(lambda act=act: act(0)) for act in CALLS}
    fast = {f"{act.__name__} again": moves(lambda act=act: act(1)) for act in CALLS}
    return {**moved, **fast, "in vain": moves(look_in_vain), "nothing": moves(lambda: None)}


def test_every_call_is_a_sign_of_life() -> None:
    names = [act.__name__ for act in CALLS]
    expected = dict.fromkeys([*names, *(f"{name} again" for name in names)], True)
    for found in phalanx.run(which_moves, ranks=2, engine="processes", backend="gloo"):
        assert found == {**expected, "in vain": False, "nothing": False}


class Asked:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.heard: list[Any] = []

    def send(self, message: Any) -> None:
        self.heard.append(message)


def test_a_rank_that_has_called_does_not_stand_still(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("phalanx.engines.standstill.monotonic", lambda: now[0])
    still, members = Standstill(5.0), [Asked(0), Asked(1)]
    still.ask(members)
    still.ask(members)
    assert [each.heard for each in members] == [[HowFar()], [HowFar()]]
    now[0] = 106.0
    assert still.seconds() == 6.0 and still.awaits(members)
    assert not still.hear(Progress(0, 0.0)) and still.seconds() == 6.0
    assert still.hear(Progress(1, 104.0)) and not still.awaits(members)
    assert still.seconds() is None and still.idle() == 2.0
    assert not still.hear(Progress(0, 103.0)) and still.idle() == 2.0


# -- whole runs --------------------------------------------------------------------------


def beat(act: Callable[[int], Any]) -> None:
    for number in range(BEATS):
        time.sleep(BEAT)
        act(number)


def wait_one_by_one() -> None:
    works: list[Any] = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(BEATS)]
    for work in works:
        time.sleep(BEAT)
        work.wait()


@pytest.mark.slow
@pytest.mark.parametrize("checks", ["all", "none"])
@pytest.mark.parametrize("act", [*CALLS, output], ids=lambda act: act.__name__)
def test_ranks_that_go_on_slowly_are_no_stall(act, checks) -> None:
    given: Any = {"engine": "processes", "backend": "gloo", "checks": checks}
    phalanx.run(beat, act, ranks=2, timeout=LIMIT, **given)


@pytest.mark.slow
@pytest.mark.parametrize("checks", ["all", "none"])
def test_ranks_that_wait_for_one_after_another_are_no_stall(checks) -> None:
    given: Any = {"engine": "processes", "backend": "gloo", "checks": checks}
    phalanx.run(wait_one_by_one, ranks=2, timeout=LIMIT, **given)


def call_then_sleep() -> None:
    for _ in range(20):
        dist.all_reduce(torch.ones(2))
    time.sleep(60)


def test_a_stall_counts_the_calls_that_were_not_told_yet() -> None:
    tallies: list[Tally] = []
    with phalanx.World(ranks=2, engine="processes", backend="gloo") as world:
        world._engine.settings = replace(world._engine.settings, on_tally=tallies.append)
        world.run(dist.barrier)
        with pytest.raises(phalanx.StallError, match="no rank moved for"):
            world._engine.call(call_then_sleep, timeout=1.0, fresh=True)
    assert tallies[-1].collectives == 20


def post_and_compute(act: Callable[[int], Any]) -> None:
    """Rank 0 posts messages or keys, and never lets another rank have a turn."""
    works = []
    for number in range(8):
        if dist.get_rank() == 0:
            until = time.monotonic() + BEAT
            while time.monotonic() < until:
                pass
            works.append(act(number))
    dist.barrier()
    if act is send and dist.get_rank() == 1:
        for _ in range(8):
            dist.recv(torch.ones(1), 0)
    for work in filter(None, works):
        work.wait()


def send(number: int) -> Any:
    return dist.isend(torch.ones(1), 1)


@pytest.mark.slow
@pytest.mark.parametrize("act", [send, key])
def test_on_threads_calls_count_that_hand_nothing_over(act) -> None:
    phalanx.run(post_and_compute, act, ranks=2, backend="gloo", timeout=1.0)
