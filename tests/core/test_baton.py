"""The baton with plain functions as strands: who runs, who waits, who is woken, who is next."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from phalanx.core.clock import VirtualClock
from phalanx.core.schedule import schedule_from_seed
from phalanx.core.strand import DONE, OUTSIDE, PARKED, READY, RUNNING, here
from phalanx.errors import RankStopped


def steps(bench, count=3):
    """A body that notes its rank before each of `count` give-ways."""

    def body(strand):
        for _ in range(count):
            bench.log.append(strand.rank)
            strand.baton.give_way(strand)

    return body


# -- order --------------------------------------------------------------------------------


def test_first_in_first_out_goes_round(bench) -> None:
    bench.run(*[steps(bench)] * 3)
    assert bench.log == [0, 1, 2] * 3


def test_who_is_woken_first_runs_first(bench) -> None:
    def waiter(strand):
        strand.baton.park(strand)
        bench.log.append(strand.rank)

    def waker(strand):
        for rank in (2, 0, 1):
            strand.baton.wake(bench.strands[rank])
        bench.log.append("woke them")

    bench.run(waiter, waiter, waiter, waker)
    assert bench.log == ["woke them", 2, 0, 1]


def test_exactly_one_strand_runs_at_a_time(make_desk) -> None:
    bench = make_desk(schedule=schedule_from_seed(3))
    inside = []

    def body(strand):
        for _ in range(50):
            inside.append(strand.rank)
            assert inside == [strand.rank] and bench.baton.holder is strand
            assert [s.state for s in bench.strands].count(RUNNING) == 1
            inside.remove(strand.rank)
            strand.baton.give_way(strand)

    bench.run(*[body] * 4)
    assert not bench.errors


def test_no_switch_point_in_order_but_with_a_seed(make_desk) -> None:
    def run_with(seed):
        bench = make_desk(schedule=schedule_from_seed(seed))

        def body(strand):
            for _ in range(5):
                bench.log.append(strand.rank)
                strand.baton.switch_point(strand)

        bench.run(body, body, body)
        return bench.log

    assert run_with(0) == [0] * 5 + [1] * 5 + [2] * 5
    assert run_with(1) != run_with(0)
    assert sorted(run_with(1)) == run_with(0)


def fingerprint(make_desk, seed: int) -> int:
    bench = make_desk(schedule=schedule_from_seed(seed))
    bench.run(*[steps(bench, 10)] * 4)
    return bench.baton.fingerprint


def test_same_seed_same_fingerprint_and_other_seeds_others(make_desk) -> None:
    prints = [fingerprint(make_desk, seed) for seed in range(20)]
    assert prints == [fingerprint(make_desk, seed) for seed in range(20)]
    assert len(set(prints)) == 20


def test_the_fingerprint_counts_hand_overs_of_ranks_in_order(bench) -> None:
    bench.run(steps(bench, 1), steps(bench, 1))
    expected = 0
    for rank in (0, 1, 0, 1):
        expected = (expected * 1000003 ^ (rank + 1)) & ((1 << 61) - 1)
    assert bench.baton.fingerprint == expected
    assert bench.baton.hand_overs == 4


# -- park and wake ------------------------------------------------------------------------


def test_park_returns_true_when_woken_and_says_why_meanwhile(bench) -> None:
    def waiter(strand):
        bench.log.append(strand.baton.park(strand, "the reason"))
        assert strand.why is None and strand.limit is None

    def waker(strand):
        sleeper = bench.strands[0]
        bench.log.append((sleeper.state, sleeper.why))
        strand.baton.wake(sleeper)
        bench.log.append(sleeper.state)

    bench.run(waiter, waker)
    assert bench.log == [(PARKED, "the reason"), READY, True]
    assert [strand.state for strand in bench.strands] == [DONE, DONE]


def test_park_returns_false_when_its_limit_passes(bench) -> None:
    def waiter(strand):
        until = strand.baton.clock.now() + 0.02
        bench.log.append(strand.baton.park(strand, deadline=until))
        bench.log.append(strand.baton.clock.now() >= until)

    def computing(strand):  # a limit passes although the holder never gives the baton away
        while bench.strands[0].state is PARKED:
            pass

    bench.run(waiter, computing)
    assert bench.log == [False, True]


def test_a_limit_passes_although_nobody_runs(bench) -> None:
    def waiter(strand):
        until = strand.baton.clock.now() + 0.02
        bench.log.append(strand.baton.park(strand, deadline=until))

    bench.run(waiter)
    assert bench.log == [False]


def test_wake_with_an_error_raises_it_at_the_waiting_point(bench) -> None:
    def waiter(strand):
        with pytest.raises(ValueError, match="bad news"):
            strand.baton.park(strand)
        bench.log.append(strand.baton.park(strand))  # and only once

    def waker(strand):
        strand.baton.wake(bench.strands[0], ValueError("bad news"))
        strand.baton.give_way(strand)
        strand.baton.wake(bench.strands[0])

    bench.run(waiter, waker)
    assert bench.log == [True] and not bench.errors


def test_waking_a_strand_that_does_not_wait_changes_nothing(bench) -> None:
    def body(strand):
        other = bench.strands[1 - strand.rank]
        strand.baton.wake(strand)
        strand.baton.wake(other)
        strand.baton.wake(other)
        bench.log.append(strand.rank)
        strand.baton.give_way(strand)

    bench.run(body, body)
    assert bench.log == [0, 1] and bench.baton.hand_overs == 4


def test_a_sleep_gives_the_baton_away(bench) -> None:
    def sleeper(strand):
        bench.log.append("lies down")
        strand.baton.sleep(strand, 0.02)
        bench.log.append("gets up")

    def worker(strand):
        bench.log.append("works")
        while bench.strands[0].state is PARKED:
            strand.baton.give_way(strand)

    bench.run(sleeper, worker)
    assert bench.log == ["lies down", "works", "gets up"]


def test_sleepers_get_up_in_order_of_their_timers(bench) -> None:
    now = bench.baton.clock.now()

    def sleeper(seconds, strand):
        strand.baton.park(strand, deadline=now + seconds, sleeping=True)
        bench.log.append(strand.rank)

    bench.run(*[partial(sleeper, seconds) for seconds in (0.06, 0.02, 0.04)])
    assert bench.log == [1, 2, 0]


# -- nobody can move ----------------------------------------------------------------------


def stuck_desk(make_desk):
    """A bench that wakes everybody with an error when nobody can move."""
    calls = []

    def on_stuck():
        calls.append([strand.state for strand in bench.strands])
        for strand in bench.strands:
            if strand.state is PARKED:
                bench.baton.wake(strand, RuntimeError("stuck"))

    bench = make_desk(on_stuck=on_stuck)
    return bench, calls


def park(strand):
    strand.baton.park(strand)


def test_on_stuck_is_called_once_when_the_last_one_parks(make_desk) -> None:
    bench, calls = stuck_desk(make_desk)
    bench.run(park, steps(bench), park)
    assert calls == [[PARKED, DONE, PARKED]]
    assert {rank: str(error) for rank, error in bench.errors.items()} == {
        0: "stuck",
        2: "stuck",
    }


def test_on_stuck_is_called_again_if_they_park_again(make_desk) -> None:
    bench, calls = stuck_desk(make_desk)

    def stubborn(strand):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="stuck"):
                strand.baton.park(strand)

    bench.run(stubborn, stubborn)
    assert calls == [[PARKED, PARKED]] * 3 and not bench.errors


def test_on_stuck_is_not_called_when_all_is_well(make_desk) -> None:
    bench, calls = stuck_desk(make_desk)

    def waiter(strand):
        strand.baton.park(strand)

    def waker(strand):
        strand.baton.give_way(strand)
        strand.baton.wake(bench.strands[0])

    bench.run(waiter, waker)
    assert calls == []


def test_a_sleeper_forbids_the_proof_and_a_limit_does_not(make_desk) -> None:
    bench, calls = stuck_desk(make_desk)

    def sleeper(strand):
        strand.baton.sleep(strand, 0.02)
        strand.baton.wake(bench.strands[0])

    bench.run(park, sleeper)
    assert calls == []

    bench, calls = stuck_desk(make_desk)
    bench.run(lambda strand: strand.baton.park(strand, deadline=1e9))
    assert len(calls) == 1


def test_a_strand_outside_forbids_the_proof_until_it_ends(make_desk) -> None:
    bench, calls = stuck_desk(make_desk)
    may_end = threading.Event()

    def visitor(strand):
        strand.baton.leave(strand)
        bench.log.append(list(calls))
        may_end.wait()

    def last(strand):
        may_end.set()
        strand.baton.park(strand)

    bench.run(visitor, last)
    assert bench.log == [[]]
    assert calls == [[DONE, PARKED]]


def test_while_the_verdict_is_made_nobody_runs(make_desk) -> None:
    """The last outsider to end finds everybody waiting; the baton was free until then."""
    running = []

    def on_stuck():
        for strand in bench.strands[1:]:
            bench.baton.wake(strand, RuntimeError("stuck"))
            bench.baton.fire_due()  # as the launcher may do at this very moment
            running.append([s.rank for s in bench.strands if s.state is RUNNING])

    bench = make_desk(on_stuck=on_stuck)

    def visitor(strand):
        strand.baton.leave(strand)
        while not all(s.state is PARKED for s in bench.strands[1:]):
            pass

    bench.run(visitor, park, park)
    assert running == [[], []]
    assert sorted(bench.errors) == [1, 2]


# -- outside ------------------------------------------------------------------------------


def test_others_run_while_one_is_outside_and_it_comes_back(bench) -> None:
    worked = threading.Event()

    def visitor(strand):
        strand.baton.leave(strand)
        assert strand.state is OUTSIDE
        worked.wait()
        strand.baton.rejoin(strand)
        assert strand.state is RUNNING and bench.baton.holder is strand
        bench.log.append("back")

    def worker(strand):
        bench.log.append("worked")
        worked.set()

    bench.run(visitor, worker)
    assert bench.log == ["worked", "back"] and not bench.errors


def test_rejoin_waits_for_the_baton(bench) -> None:
    def visitor(strand):
        strand.baton.leave(strand)
        bench.log.append("outside")
        strand.baton.rejoin(strand)
        bench.log.append("back")

    def worker(strand):
        while bench.strands[0].state is not READY:
            pass
        bench.log.append("still mine")
        strand.baton.give_way(strand)
        bench.log.append("mine again")

    bench.run(visitor, worker)
    assert bench.log[-3:] == ["still mine", "back", "mine again"]


def test_rejoin_of_the_holder_does_nothing(bench) -> None:
    def body(strand):
        before = strand.baton.hand_overs
        strand.baton.rejoin(strand)
        bench.log.append(strand.baton.hand_overs - before)

    bench.run(body)
    assert bench.log == [0]


def test_push_outside_takes_the_baton_only_from_a_holder_that_did_not_move(bench) -> None:
    def body(strand):
        baton = strand.baton
        moment = baton.hand_overs
        bench.log.append(baton.push_outside(bench.strands[1], moment))
        bench.log.append(baton.push_outside(strand, moment - 1))
        bench.log.append(baton.push_outside(strand, moment))
        bench.log.append(strand.state)
        baton.give_way(strand)  # whatever it calls next brings it back first
        bench.log.append(strand.state)

    def other(strand):
        bench.log.append("other")

    bench.run(body, other)
    assert bench.log[:2] == [False, False]
    assert sorted(map(str, bench.log[2:])) == sorted(["True", OUTSIDE, "other", RUNNING])
    assert bench.log[-1] == RUNNING and not bench.errors


def test_a_strand_that_was_pushed_outside_looks_again_before_it_parks(bench) -> None:
    """What it waits for may have happened while it was outside, with nobody to wake."""
    happened: list[str] = []

    def body(strand):
        baton = strand.baton
        assert not happened
        assert baton.push_outside(strand, baton.hand_overs)
        while not happened:
            bench.log.append(baton.park(strand))
        bench.log.append(strand.state)

    def waker(strand):
        happened.append("it")
        strand.baton.wake(bench.strands[0])

    bench.run(body, waker)
    assert bench.log == [True, RUNNING] and not bench.errors


def test_wait_outside_returns_what_the_attempt_says(bench) -> None:
    lock = threading.Lock()
    lock.acquire()

    def waiter(strand):
        wait = strand.baton.wait_outside
        bench.log.append(wait(strand, lambda seconds: lock.acquire(True, seconds), None))
        bench.log.append(wait(strand, lambda seconds: lock.acquire(True, seconds), 0.01))
        bench.log.append(wait(strand, lambda seconds: lock.acquire(True, seconds), 0.0))
        assert strand.state is RUNNING

    bench.run(waiter, lambda strand: lock.release())
    assert bench.log == [True, False, False] and not bench.errors


def test_wait_outside_ends_with_the_run(bench) -> None:
    lock = threading.Lock()
    lock.acquire()

    def waiter(strand):
        strand.baton.wait_outside(strand, lambda seconds: lock.acquire(True, seconds), None)

    assert bench.run(waiter, lambda strand: strand.baton.stop()) == []
    assert isinstance(bench.errors[0], RankStopped)


# -- pending callbacks
# ------------------------------------------------------------------------------


def test_errands_run_in_their_strand_in_order(bench) -> None:
    def host(strand):
        while len(bench.log) < 3:
            strand.baton.park(strand)
            strand.baton.run_pending_callbacks(strand)

    def guest(strand):
        for name in "abc":
            strand.baton.post(
                bench.strands[0], lambda name=name: bench.log.append((name, here.strand.rank))
            )

    bench.run(host, guest)
    assert bench.log == [("a", 0), ("b", 0), ("c", 0)]


def test_a_sleeping_strand_gets_up_for_its_errands(make_desk) -> None:
    bench = make_desk(clock=VirtualClock())

    def sleeper(strand):
        strand.baton.sleep(strand, 30.0)
        bench.log.append("slept")

    def guest(strand):
        strand.baton.post(bench.strands[0], lambda: bench.log.append("pending_callback"))

    bench.run(sleeper, guest)
    assert bench.log == ["pending_callback", "slept"]


def test_an_errand_that_waits_does_not_let_the_next_one_start(bench) -> None:
    def slow():
        strand = here.strand
        bench.log.append("slow starts")
        strand.baton.park(strand)
        strand.baton.run_pending_callbacks(strand)
        bench.log.append("slow ends")

    def host(strand):
        strand.baton.park(strand)
        strand.baton.run_pending_callbacks(strand)

    def guest(strand):
        strand.baton.post(bench.strands[0], slow)
        strand.baton.give_way(strand)
        strand.baton.post(bench.strands[0], lambda: bench.log.append("quick"))

    bench.run(host, guest)
    assert bench.log == ["slow starts", "slow ends", "quick"]


def test_errands_of_a_strand_outside_go_to_the_courier(make_desk) -> None:
    sent = []
    bench = make_desk(callback_thread=lambda strand: sent.append(strand.rank))

    def outsider(strand):
        strand.baton.leave(strand)
        while not sent:
            pass

    def guest(strand):
        strand.baton.post(strand, lambda: None)
        assert sent == []
        strand.baton.post(bench.strands[0], lambda: None)

    bench.run(outsider, guest)
    assert sent == [0] and not bench.errors


# -- stopping -----------------------------------------------------------------------------


def test_stop_unwinds_parked_strands_and_their_finally_blocks_run(bench) -> None:
    def waiter(strand):
        try:
            strand.baton.park(strand)
        finally:
            bench.log.append(("cleaned up", strand.rank))

    def sleeper(strand):
        try:
            strand.baton.sleep(strand, 3600.0)
        finally:
            bench.log.append(("got up", strand.rank))

    assert bench.run(waiter, sleeper, waiter, lambda strand: strand.baton.stop()) == []
    assert bench.log == [("cleaned up", 0), ("got up", 1), ("cleaned up", 2)]
    assert {type(error) for error in bench.errors.values()} == {RankStopped}
    assert sorted(bench.errors) == [0, 1, 2]


def test_stop_unwinds_the_others_when_they_next_come_by(bench) -> None:
    def stopper(strand):
        strand.baton.stop()
        for give_away in (
            strand.baton.give_way,
            strand.baton.park,
            strand.baton.leave,
            partial(strand.baton.sleep, seconds=1.0),
        ):
            with pytest.raises(RankStopped):
                give_away(strand)
        bench.log.append("refused")

    def ready(strand):
        strand.baton.give_way(strand)
        bench.log.append("never")

    bench.run(stopper, ready)
    assert bench.log == ["refused"]
    assert [type(bench.errors[1])] == [RankStopped] and 0 not in bench.errors


def test_a_pending_error_goes_before_the_stop(bench) -> None:
    def stopper(strand):
        strand.baton.wake(bench.strands[0], ValueError("first"))
        strand.baton.stop()

    bench.run(park, stopper)
    assert str(bench.errors[0]) == "first"


def test_nobody_is_judged_stuck_while_stopping(make_desk) -> None:
    bench, calls = stuck_desk(make_desk)
    bench.run(park, park, lambda strand: strand.baton.stop())
    assert calls == []
    assert {type(error) for error in bench.errors.values()} == {RankStopped}


# -- helpers ------------------------------------------------------------------------------


def test_a_helper_is_outside_until_it_joins_and_is_forgotten_at_its_end(bench) -> None:
    def host(strand):
        baton = strand.baton
        child = baton.add(strand.rank, helper=True)
        assert child.state is OUTSIDE

        def helper():
            baton.adopt(child)
            baton.rejoin(child)
            bench.log.append((here.strand is child, baton.holder is child))
            baton.leave(child)
            baton.finish(child)

        thread = threading.Thread(target=helper)
        thread.start()
        while child in baton.strands:
            baton.give_way(strand)
        thread.join()

    bench.run(host)
    assert bench.log == [(True, True)]
    assert bench.baton.strands == bench.strands and not bench.errors


def test_here_is_the_calling_threads_strand(bench) -> None:
    bench.run(lambda strand: bench.log.append(here.strand is strand))
    assert bench.log == [True]
    assert here.strand is None


def test_the_switcher_sees_each_hand_over(make_desk) -> None:
    class Recorder:
        def __init__(self):
            self.seen = []

        def enter(self, strand):
            self.seen.append(("enter", strand.rank))

        def leave(self, strand):
            self.seen.append(("leave", strand.rank))

    recorder = Recorder()
    bench = make_desk(switcher=recorder)

    def body(strand):
        assert recorder.seen[-1] == ("enter", strand.rank)
        strand.baton.give_way(strand)
        assert ("enter", strand.rank) in recorder.seen[-2:]

    bench.run(body, body)
    assert not bench.errors
    assert [rank for what, rank in recorder.seen if what == "enter"] == [0, 1, 0, 1]


def test_nobody_is_overtaken_in_the_middle_of_a_critical_part(bench) -> None:
    def body(strand):
        baton = strand.baton
        baton.critical = True
        bench.log.append(baton.push_outside(strand, baton.hand_overs))
        baton.critical = False
        bench.log.append(baton.push_outside(strand, baton.hand_overs))

    bench.run(body)
    assert bench.log == [False, True] and not bench.errors


def test_who_is_about_to_park_when_the_run_is_stopped_does_not_park(bench) -> None:
    def body(strand):
        strand.baton.stopping = True  # as if set between the caller's look and the mutex
        try:
            strand.baton.park(strand)
        except RankStopped:
            bench.log.append("stopped")

    bench.run(body)
    assert bench.log == ["stopped"]


def test_stopping_at_once_keeps_those_from_beginning_that_have_not(bench) -> None:
    def first(strand):
        strand.baton.stop(at_once=True)

    bench.run(first, lambda strand: bench.log.append("began"))
    assert bench.log == []
