"""Half an hour of each kind of wait on a virtual clock, in a rank's own thread and in one that
it starts. A test that waited in earnest would meet its limit of a minute, not half an hour.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import queue
import sched
import select
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx

HALF_HOUR = 1800.0


def wait_for_event() -> None:
    assert not threading.Event().wait(HALF_HOUR)


def wait_for_condition() -> None:
    condition = threading.Condition()
    with condition:
        assert not condition.wait_for(lambda: False, HALF_HOUR)


def acquire_semaphore() -> None:
    assert not threading.Semaphore(0).acquire(timeout=HALF_HOUR)


def wait_at_barrier() -> None:
    with pytest.raises(threading.BrokenBarrierError):
        threading.Barrier(2).wait(HALF_HOUR)


def get_from_queue() -> None:
    with pytest.raises(queue.Empty):
        queue.Queue[int]().get(timeout=HALF_HOUR)


def put_into_queue() -> None:
    full = queue.Queue[int](1)
    full.put(1)
    with pytest.raises(queue.Full):
        full.put(2, timeout=HALF_HOUR)


def get_from_simple_queue() -> None:
    with pytest.raises(queue.Empty):
        queue.SimpleQueue[int]().get(timeout=HALF_HOUR)


def acquire_lock() -> None:
    lock = threading.Lock()
    assert lock.acquire()
    assert not lock.acquire(timeout=HALF_HOUR)


def acquire_lock_of_another() -> None:
    lock = threading.RLock()
    other = threading.Thread(target=lock.acquire)
    other.start()
    other.join()
    assert not lock.acquire(timeout=HALF_HOUR)


def enter_lock_of_a_sleeper() -> None:
    """Without a timeout: who holds it sleeps."""
    lock, held = threading.Lock(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            time.sleep(HALF_HOUR)

    threading.Thread(target=hold).start()
    held.wait()
    with lock:
        pass


def join_for_a_time() -> None:
    thread = threading.Thread(target=time.sleep, args=(3 * HALF_HOUR,), daemon=True)
    thread.start()
    thread.join(HALF_HOUR)
    assert thread.is_alive()


def join_a_sleeper() -> None:
    thread = threading.Thread(target=time.sleep, args=(HALF_HOUR,))
    thread.start()
    thread.join(2 * HALF_HOUR)
    assert not thread.is_alive()


def start_timer() -> None:
    rung = threading.Event()
    threading.Timer(HALF_HOUR, rung.set).start()
    assert rung.wait(2 * HALF_HOUR)


def sleep_in_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, HALF_HOUR / 2)
        pool.submit(time.sleep, HALF_HOUR / 2).result()


def sleep_in_asyncio() -> None:
    async def sleep() -> None:
        parts = (asyncio.sleep(HALF_HOUR * part / 10) for part in range(11))
        await asyncio.gather(*parts)

    asyncio.run(sleep())


def wait_in_asyncio() -> None:
    async def wait() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), HALF_HOUR)

    asyncio.run(wait())


def call_later_in_asyncio() -> None:
    async def call() -> None:
        done = asyncio.Event()
        asyncio.get_running_loop().call_later(HALF_HOUR, done.set)
        await done.wait()

    asyncio.run(call())


def sleep_in_thread_of_asyncio() -> None:
    async def sleep() -> None:
        await asyncio.to_thread(time.sleep, HALF_HOUR)

    asyncio.run(sleep())


def run_scheduler() -> None:
    scheduler, done = sched.scheduler(), threading.Event()
    scheduler.enter(HALF_HOUR, 1, done.set)
    scheduler.run()
    assert done.is_set()


def select_nothing() -> None:
    assert select.select([], [], [], HALF_HOUR) == ([], [], [])


def select_nothing_by_selector() -> None:
    with selectors.DefaultSelector() as selector:
        assert selector.select(HALF_HOUR) == []


def ring_alarm() -> None:
    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))
    began = time.monotonic()
    signal.alarm(int(HALF_HOUR) - 1)
    time.sleep(HALF_HOUR)
    assert rung[0] - began == pytest.approx(HALF_HOUR - 1, abs=0.5)


def wait_for_work() -> None:
    work = dist.irecv(torch.ones(1), 1 - dist.get_rank())
    assert work is not None
    with pytest.raises(RuntimeError):
        work.wait(datetime.timedelta(seconds=HALF_HOUR))


def wait_for_store() -> None:
    store = dist.distributed_c10d._get_default_store()
    with pytest.raises(RuntimeError):
        store.wait(["never"], datetime.timedelta(seconds=HALF_HOUR))


WAITS = (
    wait_for_event,
    wait_for_condition,
    acquire_semaphore,
    wait_at_barrier,
    get_from_queue,
    put_into_queue,
    get_from_simple_queue,
    acquire_lock,
    acquire_lock_of_another,
    enter_lock_of_a_sleeper,
    join_for_a_time,
    join_a_sleeper,
    start_timer,
    sleep_in_pool,
    sleep_in_asyncio,
    wait_in_asyncio,
    call_later_in_asyncio,
    sleep_in_thread_of_asyncio,
    run_scheduler,
    select_nothing,
    select_nothing_by_selector,
)
OF_RANKS = (ring_alarm, wait_for_work, wait_for_store)


def in_thread(wait: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(wait).result()


def time_of(wait: Callable[[], Any]) -> float:
    before = time.monotonic()
    wait()
    return time.monotonic() - before


@pytest.mark.parametrize("wait", [*WAITS, *OF_RANKS], ids=lambda wait: wait.__name__)
def test_half_an_hour_in_a_rank(wait: Callable[[], None]) -> None:
    found = phalanx.run(lambda: time_of(wait), ranks=2, clock="virtual", checks="none")
    assert found == [pytest.approx(HALF_HOUR, abs=5.0)] * 2


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
def test_half_an_hour_in_a_thread_of_a_rank(wait: Callable[[], None]) -> None:
    found = phalanx.run(
        lambda: time_of(lambda: in_thread(wait)), ranks=2, clock="virtual", checks="none"
    )
    assert found == [pytest.approx(HALF_HOUR, abs=5.0)] * 2


def test_a_wait_for_a_future_ends_in_time() -> None:
    def program() -> tuple[float, bool]:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(time.sleep, HALF_HOUR)
            passed = time_of(lambda: concurrent.futures.wait([future], HALF_HOUR / 3))
            return passed, future.done()

    passed, done = phalanx.run(program, ranks=1, clock="virtual")[0]
    assert (passed, done) == (pytest.approx(HALF_HOUR / 3, abs=5.0), False)


# -- what ends a wait before its time --------------------------------------------------------


def test_who_is_notified_does_not_wait_for_the_end() -> None:
    def program() -> tuple[bool, float]:
        ready = threading.Event()
        threading.Timer(60.0, ready.set).start()
        before = time.monotonic()
        return ready.wait(HALF_HOUR), time.monotonic() - before

    assert (
        phalanx.run(program, ranks=2, clock="virtual")
        == [(True, pytest.approx(60.0, abs=5.0))] * 2
    )


def test_ranks_notify_each_other_through_what_they_share() -> None:
    ready = threading.Event()

    def program() -> float:
        if dist.get_rank() == 0:
            time.sleep(100.0)
            ready.set()
            return 0.0
        return time_of(lambda: ready.wait(HALF_HOUR))

    assert phalanx.run(program, ranks=2, clock="virtual")[1] == pytest.approx(100.0, abs=5.0)


def test_the_faster_of_two_gets_the_lock_and_the_other_waits_on() -> None:
    lock = threading.Lock()

    def program() -> list[float]:
        began, times = time.monotonic(), []
        time.sleep(float(dist.get_rank()))
        assert lock.acquire(timeout=HALF_HOUR)
        times.append(round(time.monotonic() - began))
        time.sleep(300.0)
        lock.release()
        return times

    assert phalanx.run(program, ranks=3, clock="virtual") == [[0], [300], [600]]


def test_an_item_comes_into_a_simple_queue() -> None:
    def program() -> tuple[int, float]:
        items = queue.SimpleQueue[int]()
        threading.Timer(10.0, items.put, (5,)).start()
        before = time.monotonic()
        return items.get(timeout=HALF_HOUR), time.monotonic() - before

    assert phalanx.run(program, ranks=1, clock="virtual") == [(5, pytest.approx(10.0, abs=5.0))]


def test_an_alarm_that_is_taken_back_does_not_move_the_clock() -> None:
    def program() -> float:
        before = time.monotonic()
        signal.alarm(int(HALF_HOUR))
        signal.alarm(0)
        threading.Timer(1.0, lambda: None).start()
        time.sleep(2.0)
        dist.barrier()
        return time.monotonic() - before

    assert phalanx.run(program, ranks=2, clock="virtual") == [pytest.approx(2.0, abs=1.0)] * 2


@pytest.mark.parametrize(
    ("wait", "took"),
    [
        (lambda: threading.Event().wait(5), 50),
        (lambda: threading.Event().wait(100), 110),
        (lambda: time.sleep(100), 110),
    ],
)
def test_a_handler_that_waits_leaves_the_wait_that_it_interrupts_as_it_was(
    wait: Callable[[], object], took: float
) -> None:
    def program() -> float:
        ready, began = threading.Event(), time.monotonic()

        def free() -> None:
            time.sleep(50.0)
            ready.set()

        signal.signal(signal.SIGALRM, lambda *_: wait())
        signal.alarm(10)
        helper = threading.Thread(target=free)
        helper.start()
        assert ready.wait(HALF_HOUR)
        helper.join()
        return time.monotonic() - began

    assert phalanx.run(program, ranks=1, clock="virtual", compute="free") == [
        pytest.approx(took, abs=1.0)
    ]


def test_a_deadlock_in_which_threads_wait_for_a_time_comes_to_its_end() -> None:
    """While somebody counts on a timeout nothing is proved, and here it ends the wait."""

    def program() -> None:
        if dist.get_rank() == 0:
            threading.Event().wait(60.0)
        dist.recv(torch.ones(1), 1 - dist.get_rank())

    with pytest.raises(phalanx.DeadlockError):
        phalanx.run(program, ranks=2, clock="virtual")


def test_another_end_of_a_connection_may_take_its_time() -> None:
    """What is registered with a selector may come from another process: no time is skipped."""
    one, other = socket.socketpair()

    def program() -> tuple[int, float]:
        with selectors.DefaultSelector() as selector:
            selector.register(one, selectors.EVENT_READ)
            before = time.monotonic()
            return len(selector.select(0.2)), time.monotonic() - before

    with one, other:
        found, passed = phalanx.run(program, ranks=1, clock="virtual")[0]
    assert (found, passed) == (0, pytest.approx(0.2, abs=5.0))
    assert passed >= 0.19


def test_the_names_are_as_before_after_the_run() -> None:
    names = (threading.__dict__["_time"], queue.__dict__["time"], select.select)
    lock = threading.Lock()
    phalanx.run(wait_for_event, ranks=1, clock="virtual")
    assert names == (threading.__dict__["_time"], queue.__dict__["time"], select.select)
    assert type(lock).acquire.__class__ is type(str.join)
    assert sched.scheduler.__init__.__defaults__ is not None
