"""Strands that are held back for a time: they are ready, and have no turn."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.core.clock import VirtualClock
from phalanx.core.holding_baton import HoldingBaton
from phalanx.core.launcher import Launcher
from phalanx.errors import RankStopped


def run(baton: HoldingBaton, *bodies: Any) -> None:
    strands = [baton.add(rank) for rank in range(len(bodies))]
    assert Launcher(baton).run(strands, list(bodies)) == []


def test_a_held_rank_goes_on_when_the_time_is_over() -> None:
    baton, log = HoldingBaton(clock=VirtualClock()), []

    def held(strand: Any) -> None:
        baton.hold(0, 10.0)
        baton.give_way(strand)
        log.append((0, baton.clock.now()))

    def other(strand: Any) -> None:
        for _ in range(3):
            baton.give_way(strand)
        log.append((1, baton.clock.now()))

    run(baton, held, other)
    assert log == [(1, 0.0), (0, 10.0)]


def test_holds_add_up_to_the_longest() -> None:
    baton, log = HoldingBaton(clock=VirtualClock()), []

    def held(strand: Any) -> None:
        baton.hold(0, 10.0)
        baton.hold(strand, 30.0)
        baton.give_way(strand)
        log.append(baton.clock.now())

    run(baton, held)
    assert log == [30.0]


def test_who_is_woken_while_it_is_held_goes_on_afterwards() -> None:
    baton, log = HoldingBaton(clock=VirtualClock()), []

    def held(strand: Any) -> None:
        baton.call_at(1.0, lambda: baton.hold(0, 10.0))
        assert baton.park(strand, deadline=100.0, sleeping=True)
        log.append(baton.clock.now())

    def waker(strand: Any) -> None:
        baton.sleep(strand, 5.0)
        baton.wake(baton.strands[0])

    run(baton, held, waker)
    assert log == [11.0]


def test_a_limit_is_a_way_out_when_nothing_else_is_left() -> None:
    baton, stuck = HoldingBaton(clock=VirtualClock()), []
    baton.on_stuck = lambda: stuck.append(True)

    def wait(strand: Any) -> None:
        assert not baton.park(strand, deadline=1800.0)

    run(baton, wait)
    assert baton.clock.now() == 1800.0
    assert stuck == []


def test_a_stop_of_the_run_reaches_those_that_are_held() -> None:
    baton = HoldingBaton()

    def held(strand: Any) -> None:
        baton.hold(0, 1e6)
        with pytest.raises(RankStopped):
            baton.give_way(strand)

    def stopper(strand: Any) -> None:
        baton.stop(at_once=True)

    run(baton, held, stopper)


def test_callbacks_of_a_buried_rank_do_not_run() -> None:
    baton, log = HoldingBaton(clock=VirtualClock()), []

    def gone(strand: Any) -> None:
        baton.post(strand, lambda: log.append("before"))
        baton.bury(0)
        baton.post(strand, lambda: log.append("after"))
        baton.run_pending_callbacks(strand)

    run(baton, gone)
    assert log == []
