"""What the program does about a plan while ranks run: with members that only note what they are
sent, and processes that do nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from phalanx.engines.real_faults import fault_course
from phalanx.engines.real_faults.fault_course import FaultCourse, Happened
from phalanx.engines.real_faults.fault_messages import (
    BeginCut,
    CarriedOut,
    Disconnect,
    EndCut,
    FindStores,
    GoOn,
    LoseStores,
    StrikeNow,
    Struck,
)
from phalanx.errors import PhalanxError
from phalanx.faults import parse_faults


class Noting:
    """A rank's process."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 1000 + rank
        self.status: int | None = None
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Told:
    """The referee."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def leave(self, rank: int) -> None:
        self.heard.append(("leave", rank))

    def come_back(self, rank: int) -> None:
        self.heard.append(("come back", rank))

    def cut(self, one: Sequence[int], other: Sequence[int]) -> None:
        self.heard.append(("cut", one, other))

    def join(self, one: Sequence[int], other: Sequence[int]) -> None:
        self.heard.append(("join", one, other))


class Noted:
    """In the place of what changes sockets of this process: the names of what was called."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.heard.append(name)


class Run:
    """Three ranks under a plan, and a clock that goes when it is told to."""

    def __init__(self, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.signals: list[tuple[int, int]] = []
        monkeypatch.setattr(fault_course, "monotonic", lambda: self.now)
        monkeypatch.setattr(os, "kill", lambda *given: self.signals.append(given))
        self.traffic, self.stores = Noted(), Noted()
        monkeypatch.setattr(fault_course, "CutTraffic", lambda: self.traffic)
        monkeypatch.setattr(fault_course, "UnservedStores", lambda: self.stores)
        self.ranks = [Noting(rank) for rank in range(3)]
        self.referee, self.told = Told(), list[Happened]()
        self.plan = parse_faults(plan)
        self.course = FaultCourse(self.plan, self.ranks, self.referee, self.told.append)
        self.course.begin()

    def go_to(self, seconds: float) -> None:
        self.now = 100.0 + seconds
        self.course.tick()

    def struck(self, at: int = 0) -> None:
        fault = self.plan[at]
        assert self.course.take_in(Struck(min(fault.ranks), fault))


@pytest.fixture
def under(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield lambda plan: Run(plan, monkeypatch)


def test_what_is_no_message_of_a_fault_is_left_to_others(under):
    run = under("kill(rank=1, at=call(1))")
    assert not run.course.take_in("something else")
    assert run.told == []


def test_a_rank_that_kills_itself_is_known_to_be_killed(under):
    run = under("kill(rank=1, at=call(1))")
    run.struck()
    assert run.course.killed == {1: run.plan[0]}
    assert run.referee.heard == [("leave", 1)]
    assert run.signals == []
    assert run.course.happened == [run.plan[0]]


def test_a_process_is_killed_and_stopped_at_its_moment(under):
    run = under("kill(rank=1, at=moment(5)), stop(rank=2, seconds=3, at=moment(6))")
    run.go_to(4.9)
    assert run.signals == []
    run.go_to(6)
    assert run.signals == [(1001, signal.SIGKILL), (1002, signal.SIGSTOP)]
    run.go_to(9)
    assert run.signals[2:] == [(1002, signal.SIGCONT)]
    assert run.referee.heard == [("leave", 1), ("leave", 2), ("come back", 2)]


def test_a_process_that_has_ended_gets_no_signal(under):
    run = under("kill(rank=1, at=moment(5))")
    run.ranks[1].status = 0
    run.go_to(6)
    assert run.signals == [] and run.told == []


def test_nothing_happens_to_a_rank_whose_program_is_over(under):
    run = under("kill(rank=1, at=moment(5)), delay(rank=1, seconds=3, at=moment(5))")
    run.course.end_program(1)
    run.go_to(6)
    assert run.signals == [] and run.told == [] and run.ranks[1].sent == []


def test_a_process_that_is_stopped_twice_is_woken_up_once(under):
    plan = "stop(rank=1, seconds=9, at=moment(1)), stop(rank=1, seconds=3, at=moment(2))"
    run = under(plan)
    for seconds in (1, 2, 5):
        run.go_to(seconds)
    assert [number for _, number in run.signals] == [signal.SIGSTOP] * 2
    run.go_to(10)
    assert [number for _, number in run.signals[2:]] == [signal.SIGCONT]
    assert run.referee.heard == [("leave", 1), ("come back", 1)]


def test_a_rank_that_is_stopped_at_its_point_is_woken_up_when_its_time_is_over(under):
    run = under("stop(rank=1, seconds=3, at=call(1))")
    run.struck()
    assert run.course.is_pending()
    run.go_to(2.9)
    assert run.signals == [(1001, signal.SIGSTOP)] and run.ranks[1].sent == []
    run.go_to(3)
    assert run.signals[1:] == [(1001, signal.SIGCONT)] and run.ranks[1].sent == [GoOn()]
    assert not run.course.is_pending()


def test_nobody_stays_stopped_when_the_run_ends(under):
    run = under("stop(rank=1, seconds=900, at=call(1))")
    run.struck()
    run.course.wake()
    run.course.wake()
    assert run.signals[1:] == [(1001, signal.SIGCONT)]


def test_a_fault_is_pending_from_its_beginning_to_its_end(under):
    run = under("partition([0], [2], during=(5, 20))")
    assert not run.course.is_pending()
    run.go_to(5)
    assert run.course.is_pending()
    run.go_to(20)
    assert not run.course.is_pending()


def test_a_fault_without_an_end_is_not_waited_for(under):
    run = under("partition([0], [2], during=(5, None))")
    run.go_to(5)
    assert not run.course.is_pending()


def test_each_side_of_a_partition_is_told_of_the_other(under):
    run = under("partition([0], [1, 2], during=(5, 20))")
    run.go_to(5)
    number = run.ranks[0].sent[0].number
    assert run.ranks[0].sent == [BeginCut(number, (1001, 1002))]
    assert run.ranks[2].sent == [BeginCut(number, (1000, os.getpid()))]
    assert run.traffic.heard == ["cut"]
    run.go_to(20)
    assert run.ranks[1].sent[1:] == [EndCut(number)]
    assert run.traffic.heard == ["cut", "join"]
    assert run.referee.heard == [("cut", (0,), (1, 2)), ("join", (0,), (1, 2))]
    assert [each.ended for each in run.told] == [False, True]


def test_what_a_rank_does_at_a_moment_it_is_told(under):
    run = under("delay(rank=1, seconds=3, at=moment(5)), raise_(OSError, rank=2, at=moment(5))")
    run.go_to(5)
    assert run.ranks[1].sent == [StrikeNow(run.plan[0])]
    assert run.ranks[2].sent == [StrikeNow(run.plan[1])]
    assert run.told == []  # not before the ranks say so
    run.struck()
    assert run.course.is_pending()


def test_a_rank_at_whose_point_the_store_is_lost_goes_on_when_it_is(under):
    run = under("drop_store(rank=1, at=store(3), seconds=4)")
    run.struck()
    number = run.ranks[0].sent[0].number
    assert all(rank.sent == [LoseStores(number)] for rank in run.ranks)
    run.course.take_in(CarriedOut(0, number))
    run.course.lose(2)  # its process has ended
    assert run.ranks[1].sent[1:] == []
    run.course.take_in(CarriedOut(1, number))
    assert run.ranks[1].sent[1:] == [GoOn()]
    run.go_to(4)
    assert run.ranks[0].sent[1:] == [FindStores()]
    assert run.stores.heard == ["lose", "serve_again"]


def test_a_machine_that_cannot_carry_a_fault_out_is_named(under):
    run = under("partition([0], [1, 2], during=(5, 20))")
    run.go_to(5)
    with pytest.raises(PhalanxError, match="rank 1 cannot carry out a fault: OSError: no"):
        run.course.take_in(CarriedOut(1, run.ranks[1].sent[0].number, "OSError: no"))


def test_a_program_that_cannot_carry_a_fault_out_says_so(under, monkeypatch):
    def refuse(*given: Any) -> None:
        raise PermissionError("no filters")

    run = under("partition([0], [1, 2], during=(5, 20))")
    monkeypatch.setattr(run.traffic, "cut", refuse, raising=False)
    with pytest.raises(PhalanxError, match="the program cannot carry out a fault: Permission"):
        run.go_to(5)


def test_a_rank_whose_program_is_over_is_disconnected_once_somebody_may_wait_for_it(under):
    run = under("corrupt(rank=0, call=1), kill(rank=1, at=call(1))")
    run.course.end_program(0)
    run.struck(0)
    assert run.ranks[0].sent == []
    run.struck(1)
    assert run.ranks[0].sent == [Disconnect()]
    run.course.end_program(2)
    assert run.ranks[2].sent == [Disconnect()]
    assert run.ranks[0].sent == [Disconnect()]
