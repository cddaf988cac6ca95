"""Ranks as processes: what the caller sees when one raises, dies or hangs."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
import traceback
from typing import Any

import pytest
import torch.distributed as dist

import phalanx
from phalanx.errors import RankDied

GLOO: dict[str, Any] = {"engine": "processes", "backend": "gloo", "timeout": 30.0}


@pytest.fixture(scope="module")
def world():
    with phalanx.World(ranks=3, **GLOO) as opened:
        yield opened


@pytest.fixture(scope="module")
def unchecked():
    """Where nobody compares calls, and the backend's own behaviour shows."""
    with phalanx.World(ranks=3, checks="none", **GLOO) as opened:
        yield opened


def failure(world: phalanx.World, fn: Any, *args: Any) -> phalanx.RankFailedError:
    with pytest.raises(phalanx.RankFailedError) as caught:
        world.run(fn, *args)
    return caught.value


# -- what runs in the ranks ---------------------------------------------------------------


class Awkward(Exception):
    """Cannot be made from its own text."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.one = one
        self.lock = threading.Lock()  # this even less


class Hidden(Exception):
    """Cannot be told by its class: nobody finds that."""

    def __reduce__(self) -> Any:
        raise TypeError("not for others")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise TypeError("not this either")


class Mute:
    """Cannot be sent, nor described."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __repr__(self) -> str:
        raise ValueError("broken")


def raise_hidden() -> None:
    raise Hidden("1 and 2")


def raise_a_circle() -> None:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


def give_mute() -> Mute:
    return Mute()


def raise_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("bad batch")
    dist.barrier()


def raise_everywhere() -> None:
    raise KeyError("x")


def raise_awkward() -> None:
    raise Awkward(1, 2)


def chain() -> None:
    try:
        raise_everywhere()
    except KeyError as error:
        raise ValueError("because of it") from error


def leave_with(code: int) -> None:
    if dist.get_rank() == 0:
        sys.exit(code)
    dist.barrier()


def die_on(rank: int, how: str) -> None:
    dist.barrier()
    if dist.get_rank() != rank:
        dist.barrier()
        return
    print("these are my last words", file=sys.stderr)
    if how == "exit":
        os._exit(3)
    if how == "fault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)


def return_and_die() -> None:
    """A run would wait for a thread that is no daemon."""
    timer = threading.Timer(0.1, os._exit, (5,))
    timer.daemon = True
    timer.start()


def give_up_when_alone() -> None:
    if dist.get_rank() == 1:
        os._exit(6)
    try:
        dist.barrier()
    except RuntimeError as error:
        raise ValueError("giving up") from error


def hang_on(rank: int) -> None:
    if dist.get_rank() == rank:
        dist.barrier()


def hold_the_lock(rank: int) -> None:
    """Blocks without ever letting another thread of the process run."""
    if dist.get_rank() == rank:
        lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
        lock(mutex)
        lock(mutex)


def sleep_for(seconds: float) -> None:
    time.sleep(seconds)


def compute_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


# -- raising ------------------------------------------------------------------------------


def test_the_report_is_that_of_threads(world) -> None:
    error = failure(world, raise_on, 1)
    lines = str(error).splitlines()
    assert lines[0] == "rank 1 raised ValueError: bad batch"
    assert lines[4].strip() == '>  raise ValueError("bad batch")'
    assert lines[-2] == "  stopped   ranks 0, 2 in barrier() (call #0) at"
    assert list(error.failures) == [1] and error.verdict.ranks == (1,)
    assert type(error.failures[1]) is ValueError
    assert error.__cause__ is error.failures[1]


def test_the_traceback_of_the_rank_is_told(world) -> None:
    text = "".join(traceback.format_exception(failure(world, chain)))
    assert "in raise_everywhere\n    raise KeyError" in text
    assert "ValueError: because of it" in text
    assert "processes/rank.py" not in text


def test_ranks_that_fail_alike_are_told_together(world) -> None:
    error = failure(world, raise_everywhere)
    assert str(error).splitlines()[0] == "ranks 0-2 raised KeyError: 'x'"
    assert list(error.failures) == [0, 1, 2]


def test_an_exception_that_cannot_be_made_from_its_text_keeps_what_it_has(world) -> None:
    error = failure(world, raise_awkward)
    assert str(error).splitlines()[0] == "ranks 0-2 raised Awkward: 1 and 2"
    raised = error.failures[0]
    assert isinstance(raised, Awkward) and raised.one == 1
    assert not hasattr(raised, "lock")


def test_an_exception_that_cannot_travel_keeps_its_name_and_text(world) -> None:
    error = failure(world, raise_hidden)
    assert str(error).splitlines()[0] == "ranks 0-2 raised Hidden: 1 and 2"
    assert type(error.failures[0]).__name__ == "Hidden"


def test_causes_in_a_circle(world) -> None:
    error = failure(world, raise_a_circle)
    assert str(error).splitlines()[0] == "ranks 0-2 raised ValueError: one"


def test_what_can_neither_be_sent_nor_described(world) -> None:
    with pytest.raises(phalanx.UsageError, match="rank 0 returned a Mute, which cannot be"):
        world.run(give_mute)
    with pytest.raises(phalanx.UsageError, match="a Mute cannot be sent to another process"):
        world.run(sleep_for, Mute())


def test_sys_exit_with_a_code_is_a_failure(world) -> None:
    error = failure(world, leave_with, 7)
    assert str(error).splitlines()[0] == "rank 0 raised SystemExit: 7"
    assert isinstance(error.failures[0], SystemExit)


def test_the_next_run_has_fresh_processes(world) -> None:
    before = world.run(os.getpid)
    failure(world, raise_on, 0)
    after = world.run(os.getpid)
    assert len(after) == 3 and not set(before) & set(after)


# -- dying --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "told", "code", "name"),
    [
        ("exit", "died with exit code 3", 3, None),
        ("kill", "died of SIGKILL", -9, "SIGKILL"),
        ("fault", "died of SIGSEGV", -11, "SIGSEGV"),
    ],
)
def test_a_rank_that_dies(world, how, told, code, name) -> None:
    error = failure(world, die_on, 1, how)
    lines = [line.strip() for line in str(error).splitlines()]
    assert lines[0] == f"rank 1 {told}"
    assert "these are my last words" in lines
    assert lines[-2] == "stopped   ranks 0, 2 in barrier() (call #1) at"
    died = error.failures[1]
    assert isinstance(died, RankDied) and (died.code, died.signal) == (code, name)
    assert list(error.failures) == [1]
    if how == "fault":
        assert ">  ctypes.string_at(0)" in lines
    assert world.run(dist.get_rank) == [0, 1, 2]


def test_a_rank_killed_from_outside_in_the_middle_of_a_run() -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        victim = world.run(os.getpid)[1]
        timer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
        timer.start()
        error = failure(world, sleep_for, 20.0)
        timer.join()
    assert str(error).splitlines()[0] == "rank 1 died of SIGKILL"
    assert "stopped   rank 0 outside Phalanx's sight at\n" in str(error)


def test_a_rank_that_died_between_runs_is_told_by_the_next() -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        os.kill(world.run(os.getpid)[0], signal.SIGKILL)
        assert str(failure(world, dist.get_rank)).startswith("rank 0 died of SIGKILL")
        assert world.run(dist.get_rank) == [0, 1]


def test_a_rank_that_dies_after_it_has_returned_is_told_by_the_next_run() -> None:
    with phalanx.World(ranks=1, **GLOO) as world:
        world.run(return_and_die)
        assert str(failure(world, sleep_for, 5.0)).startswith("rank 0 died with exit code 5")


def test_a_death_comes_before_what_others_raise_because_of_it(unchecked) -> None:
    error = failure(unchecked, give_up_when_alone)
    headline = str(error).splitlines()[0]
    assert headline == "rank 1 died with exit code 6; ranks 0, 2 raised other errors"


# -- hanging ------------------------------------------------------------------------------


def stall(world: phalanx.World, timeout: float, fn: Any, *args: Any) -> phalanx.StallError:
    """A short limit for this call alone: making the group may take longer."""
    world.run(dist.barrier)
    with pytest.raises(phalanx.StallError) as caught:
        world._engine.call(fn, args, timeout=timeout)
    return caught.value


def test_a_rank_that_hangs_while_others_have_returned(unchecked) -> None:
    error = stall(unchecked, 1.5, hang_on, 2)
    assert unchecked.run(dist.get_rank) == [0, 1, 2]
    lines = [line.strip() for line in str(error).splitlines()]
    headline = r"no rank moved for 1\.\d s; ranks 0, 1 returned; rank 2 at"
    assert re.match(headline, lines[0])
    assert error.verdict.ranks == (2,)
    assert [site.source for site in error.verdict.stacks[2]][-1] == "dist.barrier()"
    assert "rank 2       in barrier" in lines
    assert "ranks 0, 1   returned" in lines


def test_a_rank_that_lets_no_other_thread_run_is_found_all_the_same(world) -> None:
    error = stall(world, 0.5, hold_the_lock, 0)
    assert re.match(r"no rank moved for 0\.\d s; rank 0 at", str(error))
    assert [site.source for site in error.verdict.stacks[0]] == ["lock(mutex)"]


def test_all_ranks_hang(world) -> None:
    error = stall(world, 0.5, sleep_for, 60.0)
    assert error.verdict.ranks == (0, 1, 2)
    assert {rank: stack[-1].source for rank, stack in error.verdict.stacks.items()} == (
        dict.fromkeys(range(3), "time.sleep(seconds)")
    )


@pytest.mark.slow
def test_the_limit_of_a_world() -> None:
    with (
        phalanx.World(ranks=1, **{**GLOO, "timeout": 10.0}) as world,
        pytest.raises(phalanx.StallError, match="no rank moved for 10 s"),
    ):
        world.run(sleep_for, 60.0)


@pytest.mark.slow
def test_without_a_timeout_computing_counts_and_waiting_does_not(monkeypatch) -> None:
    monkeypatch.setattr("phalanx.engines.processes.call_on_ranks.IDLE_STALL", 2.0)
    with phalanx.World(ranks=1, engine="processes", backend="gloo") as world:
        world.run(dist.barrier)
        world.run(compute_for, 4.0)
        with pytest.raises(phalanx.StallError):
            world.run(sleep_for, 60.0)
