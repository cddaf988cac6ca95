"""Clocks by themselves, and the virtual one as the baton drives it."""

from __future__ import annotations

import time

import pytest

from phalanx.core.clock import RealClock, VirtualClock
from phalanx.core.strand import Strand

HALF_AN_HOUR = 1800.0


@pytest.fixture
def desk(make_desk):
    return make_desk(clock=VirtualClock())


def test_a_real_clock_is_the_monotonic_one_and_cannot_be_moved() -> None:
    clock = RealClock()
    before = time.monotonic()
    assert before <= clock.now() <= time.monotonic()
    with pytest.raises(AssertionError):
        clock.jump_to(5.0)


def test_a_virtual_clock_moves_forward_only() -> None:
    clock = VirtualClock()
    assert clock.now() == 0.0
    clock.jump_to(3.0)
    clock.jump_to(1.0)
    assert clock.now() == 3.0


def test_sleeps_take_no_time_when_everybody_waits(desk) -> None:
    def sleeper(seconds: float):  # type: ignore[no-untyped-def]
        def body(strand: Strand) -> None:
            strand.baton.sleep(strand, seconds)
            desk.log.append((strand.rank, strand.baton.clock.now()))

        return body

    began = time.monotonic()
    desk.run(*map(sleeper, (3 * HALF_AN_HOUR, HALF_AN_HOUR, 2 * HALF_AN_HOUR)))
    assert time.monotonic() - began < 10
    assert desk.log == [(1, 1800.0), (2, 3600.0), (0, 5400.0)]


def test_equal_timers_fire_in_the_order_they_were_set(desk) -> None:
    def body(strand: Strand) -> None:
        strand.baton.sleep(strand, 10.0)
        desk.log.append(strand.rank)

    desk.run(body, body, body)
    assert desk.log == [0, 1, 2]


def test_the_clock_stops_at_a_limit_that_comes_before_the_next_timer(desk) -> None:
    def sleeper(strand: Strand) -> None:
        strand.baton.sleep(strand, 100.0)
        desk.log.append(("slept", strand.baton.clock.now()))

    def waiter(strand: Strand) -> None:
        woken = strand.baton.park(strand, deadline=40.0)
        desk.log.append((woken, strand.baton.clock.now()))

    desk.run(sleeper, waiter)
    assert desk.log == [(False, 40.0), ("slept", 100.0)]


def test_the_clock_stands_still_while_somebody_can_run(desk) -> None:
    def sleeper(strand: Strand) -> None:
        strand.baton.sleep(strand, 1.0)
        desk.log.append("slept")

    def worker(strand: Strand) -> None:
        for _ in range(50):
            strand.baton.give_way(strand)
        desk.log.append(("worked", strand.baton.clock.now()))

    desk.run(sleeper, worker)
    assert desk.log == [("worked", 0.0), "slept"]


def test_the_clock_stands_still_while_somebody_is_outside(desk) -> None:
    def sleeper(strand: Strand) -> None:
        strand.baton.sleep(strand, 1000.0)
        desk.log.append("slept")

    def visitor(strand: Strand) -> None:
        strand.baton.leave(strand)
        desk.log.append(("outside", strand.baton.clock.now()))
        strand.baton.rejoin(strand)
        desk.log.append(("back", strand.baton.clock.now()))

    desk.run(sleeper, visitor)
    assert desk.log == [("outside", 0.0), ("back", 0.0), "slept"]


def test_a_sleep_that_is_disturbed_still_lasts(desk) -> None:
    def sleeper(strand: Strand) -> None:
        strand.baton.sleep(strand, 10.0)
        desk.log.append(strand.baton.clock.now())

    def disturber(strand: Strand) -> None:
        strand.baton.sleep(strand, 4.0)
        strand.baton.wake(desk.strands[0])

    desk.run(sleeper, disturber)
    assert desk.log == [10.0]


def test_timers_of_strands_woken_early_are_forgotten(desk) -> None:
    def waiter(strand: Strand) -> None:
        for _ in range(100):
            assert strand.baton.park(strand, deadline=500.0, sleeping=True)
        desk.log.append(strand.baton.clock.now())

    def waker(strand: Strand) -> None:
        for _ in range(100):
            strand.baton.wake(desk.strands[0])
            strand.baton.give_way(strand)

    desk.run(waiter, waker)
    assert desk.log == [0.0]
    assert not desk.baton._sleepers
