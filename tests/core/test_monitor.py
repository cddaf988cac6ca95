"""The monitor and the launcher: holders that block natively, ends, stalls, ranks that stay."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from itertools import pairwise

import pytest

from phalanx.core import launcher, monitor
from phalanx.core.launcher import Launcher, Patience, end_threads
from phalanx.core.monitor import QUIET
from phalanx.core.strand import OUTSIDE, PARKED, RUNNING, cpu_time, is_asleep
from phalanx.errors import RankStopped


def test_a_holder_that_blocks_natively_loses_the_baton_until_it_comes_back(bench) -> None:
    letters = queue.SimpleQueue()

    def blocking(strand):
        bench.log.append(letters.get())
        bench.log.append(strand.state)
        strand.baton.give_way(strand)
        bench.log.append(strand.state)

    def writer(strand):
        bench.log.append(bench.strands[0].state)
        letters.put("letter")
        bench.strands[0].baton.give_way(strand)

    bench.run(blocking, writer)
    assert bench.log[0] == OUTSIDE and "letter" in bench.log
    assert bench.log[-1] == RUNNING and not bench.errors


def test_looks_that_take_long_are_rare(bench, monkeypatch) -> None:
    """A rank waits while the monitor looks."""
    now, spent, looks = [0.0], [0.0], []
    monkeypatch.setattr(monitor, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "thread_time", lambda: spent[0])

    def look() -> None:
        looks.append(round(now[0], 3))
        spent[0] += {2: 0.01, 4: 1.0}.get(len(looks), 0.0)

    watched = monitor.Monitor(bench.baton)
    bench.baton.on_look = look
    for tick in range(300):
        now[0] = tick * 0.005
        watched.check()
    gaps = [after - before for before, after in pairwise(looks)]
    assert gaps[0] == pytest.approx(monitor.LOOK)
    assert gaps[1] == pytest.approx(0.01 * monitor.REST)
    assert gaps[2] == pytest.approx(monitor.LOOK)
    assert gaps[3] == pytest.approx(monitor.MOST_REST)


def test_many_threads_are_checked_less_often() -> None:
    assert monitor.tick_for(4) == monitor.tick_for(500) == monitor.TICK
    assert monitor.tick_for(4096) == 8 * monitor.TICK


def test_a_holder_that_computes_keeps_the_baton(bench) -> None:
    def computing(strand):
        until = time.monotonic() + 0.15
        while time.monotonic() < until:
            pass
        bench.log.append((strand.state, bench.baton.hand_overs))

    bench.run(computing, lambda strand: bench.log.append("other"))
    assert bench.log == [(RUNNING, 1), "other"]


@pytest.mark.slow  # by the speed of the machine
def test_a_holder_that_others_work_for_keeps_the_baton(bench, monkeypatch) -> None:
    """As torch's threads do for an operator; on a busy machine they get little CPU time."""
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    ready = threading.Lock()
    ready.acquire()

    data = bytes(8 << 20)
    began = time.perf_counter()
    hashlib.sha256(data)
    data *= max(1, round(5 * QUIET / (time.perf_counter() - began)))  # well below BUSY_QUIET

    def work():
        hashlib.sha256(data)  # without Python's lock, as torch's threads work
        ready.release()

    def waiting(strand):
        worker = threading.Thread(target=work)
        worker.start()
        ready.acquire()
        bench.log.append((strand.state, bench.baton.hand_overs))
        worker.join()

    bench.run(waiting, lambda strand: bench.log.append("other"))
    assert bench.log == [(RUNNING, 1), "other"]


def test_nobody_is_pushed_while_the_world_is_frozen(bench) -> None:
    def nested(strand):
        strand.baton.frozen = True
        threading.Event().wait(0.1)
        bench.log.append(strand.state)
        strand.baton.frozen = False

    bench.run(nested, lambda strand: bench.log.append("other"))
    assert bench.log == [RUNNING, "other"]


def test_a_threads_clock_stands_while_it_sleeps(bench) -> None:
    may_look, looked = threading.Event(), threading.Event()

    def body(strand):
        may_look.set()
        looked.wait()

    def look():
        may_look.wait()
        strand = bench.strands[0]
        while not is_asleep(strand.native):
            pass
        before = cpu_time(strand)
        bench.log.append((before > 0, cpu_time(strand) - before < 0.01))
        looked.set()

    observer = threading.Thread(target=look)
    observer.start()
    bench.run(body)
    observer.join()
    assert bench.log == [(True, True)]


def test_where_there_is_no_thread_clock_the_place_in_the_code_has_to_do(bench) -> None:
    def body(strand):
        strand.cpu_clock = None
        bench.log.append(cpu_time(strand) != 0.0)

    bench.run(body)
    assert bench.log == [True]
    assert cpu_time(bench.strands[0]) == 0.0


# -- the launcher ----------------------------------------------------------------------------


def test_every_body_runs_in_a_thread_of_its_own_and_none_is_left(bench) -> None:
    before = threading.active_count()
    bench.run(*[lambda strand: bench.log.append(threading.current_thread().name)] * 3)
    assert bench.log == ["rank-0", "rank-1", "rank-2"]
    assert threading.active_count() == before


def test_a_standstill_is_reported_after_the_given_time(bench) -> None:
    seen = []

    def on_stall(seconds):
        seen.append((seconds, [strand.state for strand in bench.strands]))
        bench.baton.stop()

    def outside(strand):
        strand.baton.wait_outside(strand, lambda seconds: threading.Event().wait(seconds), None)

    def waiting(strand):
        strand.baton.park(strand)

    bench.run(outside, waiting, stall_after=0.05, on_stall=on_stall)
    assert seen == [(0.05, [OUTSIDE, PARKED])]
    assert {type(error) for error in bench.errors.values()} == {RankStopped}


def test_computing_is_no_standstill(bench, monkeypatch) -> None:
    """By a clock that stands while a busy machine lets nobody compute."""
    for module in (launcher, monitor):
        monkeypatch.setattr(module, "monotonic", time.process_time)
    stalls = []

    def computing(strand):
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass

    bench.run(computing, stall_after=0.05, on_stall=stalls.append)
    assert stalls == []


def test_the_tick_is_called_while_ranks_run(bench) -> None:
    ticks = []

    def body(strand):
        while not ticks:
            pass

    bench.run(body, on_tick=lambda: ticks.append(1))
    assert ticks


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(launcher, "AFTER_FAILURE", Patience(nudge=0.05, again=0.1, give_up=0.5))


def test_a_rank_that_computes_for_ever_is_thrown_out(bench, monkeypatch) -> None:
    monkeypatch.setattr(launcher, "AFTER_FAILURE", Patience(nudge=0.05, again=2.0, give_up=5.0))

    def endless(strand):
        turns = 0
        try:
            while True:
                turns += 1  # Python 3.11 may skip the finally of a loop without a statement
        finally:
            began = time.monotonic()
            while time.monotonic() - began < 0.08:  # it has `again` for this
                pass
            bench.log.append("cleaned up")

    def stopper(strand):
        strand.baton.stop()

    assert bench.run(stopper, endless) == []
    assert bench.log == ["cleaned up"]
    assert isinstance(bench.errors[1], RankStopped)


def test_a_rank_that_cannot_be_stopped_is_named_and_left(bench, impatient) -> None:
    letters = queue.SimpleQueue()

    def deaf(strand):
        strand.baton.leave(strand)
        letters.get()

    def stopper(strand):
        strand.baton.stop()

    assert bench.run(deaf, stopper) == [bench.strands[0]]
    letters.put("now end")
    for thread in threading.enumerate():
        if thread.name == "rank-0":
            thread.join()


def test_a_rank_that_eats_every_refusal_is_put_to_sleep(bench, impatient) -> None:
    def swallowing(strand):
        while True:
            try:
                strand.baton.park(strand)
            except RankStopped:
                bench.log.append(1)
                if len(bench.log) > 1500:
                    return

    def stopper(strand):
        strand.baton.stop()

    assert bench.run(swallowing, stopper) == [bench.strands[0]]
    assert 1000 <= len(bench.log) <= 1001 + 100  # those thrown in count as well
    bench.strands[0].refusals = -10_000
    bench.strands[0].gate.release()
    for thread in threading.enumerate():
        if thread.name == "rank-0":
            thread.join()


def test_an_interrupt_stops_everybody_and_tells_where_they_were(bench) -> None:
    told = []
    runs = threading.Event()

    def interrupt_once():
        if runs.is_set() and not told:
            raise KeyboardInterrupt

    starter = Launcher(
        bench.baton,
        on_tick=interrupt_once,
        on_interrupt=lambda: told.append([strand.state for strand in bench.strands]),
    )

    def endless(strand):
        runs.set()
        while True:
            pass

    bench.strands = [bench.baton.add(rank) for rank in range(2)]

    def waiting(strand):
        strand.baton.park(strand)

    assert starter.run(bench.strands, [waiting, endless]) == []
    assert starter.interrupted
    assert told == [[PARKED, RUNNING]]


def test_threads_left_behind_are_ended(bench) -> None:
    def spin():
        while True:
            try:
                time.sleep(0.001)
            except RankStopped:
                return

    threads = [threading.Thread(target=spin, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert end_threads(threads, patience=5.0) == []
    assert not any(thread.is_alive() for thread in threads)


def test_threads_that_would_not_go_are_named() -> None:
    may_end = threading.Event()
    letters = queue.SimpleQueue()

    def deaf():
        try:
            letters.get()
        except RankStopped:
            may_end.set()

    def spin():
        try:
            while True:
                pass
        except RankStopped:
            pass

    threads = [threading.Thread(target=deaf), threading.Thread(target=spin)]
    for thread in threads:
        thread.start()
    assert end_threads(threads, patience=0.3) == threads[:1], "and the others are ended"
    letters.put("now end")
    threads[0].join()
