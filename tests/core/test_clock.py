"""Clocks by themselves, and the virtual one as the baton drives it."""

from __future__ import annotations

import time

import pytest

from phalanx.core.clock import RealClock, VirtualClock
from phalanx.core.strand import Strand

HALF_AN_HOUR = 1800.0


@pytest.fixture
def bench(make_desk):
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


def test_sleeps_take_no_time_when_everybody_waits(bench) -> None:
    def sleeper(seconds: float):  # type: ignore[no-untyped-def]
        def body(strand: Strand) -> None:
            strand.baton.sleep(strand, seconds)
            bench.log.append((strand.rank, strand.baton.clock.now()))

        return body

    began = time.monotonic()
    bench.run(*map(sleeper, (3 * HALF_AN_HOUR, HALF_AN_HOUR, 2 * HALF_AN_HOUR)))
    assert time.monotonic() - began < 10
    assert bench.log == [(1, 1800.0), (2, 3600.0), (0, 5400.0)]


def test_equal_timers_fire_in_the_order_they_were_set(bench) -> None:
    def body(strand: Strand) -> None:
        strand.baton.sleep(strand, 10.0)
        bench.log.append(strand.rank)

    bench.run(body, body, body)
    assert bench.log == [0, 1, 2]


def test_the_clock_stops_at_a_limit_that_comes_before_the_next_timer(bench) -> None:
    def sleeper(strand: Strand) -> None:
        strand.baton.sleep(strand, 100.0)
        bench.log.append(("slept", strand.baton.clock.now()))

    def waiter(strand: Strand) -> None:
        woken = strand.baton.park(strand, deadline=40.0)
        bench.log.append((woken, strand.baton.clock.now()))

    bench.run(sleeper, waiter)
    assert bench.log == [(False, 40.0), ("slept", 100.0)]


def test_the_clock_stands_still_while_somebody_can_run(bench) -> None:
    def sleeper(strand: Strand) -> None:
        strand.baton.sleep(strand, 1.0)
        bench.log.append("slept")

    def worker(strand: Strand) -> None:
        for _ in range(50):
            strand.baton.give_way(strand)
        bench.log.append(("worked", strand.baton.clock.now()))

    bench.run(sleeper, worker)
    assert bench.log == [("worked", 0.0), "slept"]


def test_the_clock_stands_still_while_somebody_is_outside(bench) -> None:
    def sleeper(strand: Strand) -> None:
        strand.baton.sleep(strand, 1000.0)
        bench.log.append("slept")

    def visitor(strand: Strand) -> None:
        strand.baton.leave(strand)
        bench.log.append(("outside", strand.baton.clock.now()))
        strand.baton.rejoin(strand)
        bench.log.append(("back", strand.baton.clock.now()))

    bench.run(sleeper, visitor)
    assert bench.log == [("outside", 0.0), ("back", 0.0), "slept"]


def test_a_sleep_that_is_disturbed_still_lasts(bench) -> None:
    def sleeper(strand: Strand) -> None:
        strand.baton.sleep(strand, 10.0)
        bench.log.append(strand.baton.clock.now())

    def disturber(strand: Strand) -> None:
        strand.baton.sleep(strand, 4.0)
        strand.baton.wake(bench.strands[0])

    bench.run(sleeper, disturber)
    assert bench.log == [10.0]


def test_timers_of_strands_woken_early_are_forgotten(bench) -> None:
    def waiter(strand: Strand) -> None:
        for _ in range(100):
            assert strand.baton.park(strand, deadline=500.0, sleeping=True)
        bench.log.append(strand.baton.clock.now())

    def waker(strand: Strand) -> None:
        for _ in range(100):
            strand.baton.wake(bench.strands[0])
            strand.baton.give_way(strand)

    bench.run(waiter, waker)
    assert bench.log == [0.0]
    assert not bench.baton._timers.pending
