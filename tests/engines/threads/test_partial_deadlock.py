"""Ranks that can never move again are told so while others work; and nobody else is."""

from __future__ import annotations

import _thread
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.model import Deadlock, Mismatch
from tests.support import assert_silent

PATIENCE = 20.0
"""Seconds that those who work would go on; a verdict comes long before."""


def hang(body: Callable[[], None], ranks: int) -> Deadlock:
    begin = time.monotonic()
    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(body, ranks=ranks)
    assert time.monotonic() - begin < PATIENCE / 2
    verdict = caught.value.verdict
    assert isinstance(verdict, Deadlock)
    return verdict


def receive_from_each_other() -> None:
    dist.recv(torch.empty(2), src=1 - dist.get_rank())


def test_two_receive_while_others_communicate() -> None:
    def body() -> None:
        pair = dist.new_group([2, 3])
        if dist.get_rank() < 2:
            receive_from_each_other()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            dist.all_reduce(torch.ones(2), group=pair)

    verdict = hang(body, ranks=4)
    assert (verdict.cause, verdict.cycle, verdict.partial) == ("cycle", (0, 1), True)
    assert verdict.blocks[-1].ranks == (2, 3)


def test_two_receive_while_another_sleeps() -> None:
    def body() -> None:
        if dist.get_rank() < 2:
            receive_from_each_other()
        time.sleep(PATIENCE)

    assert hang(body, ranks=3).cycle == (0, 1)


def test_a_rank_that_computes_for_long_is_stopped() -> None:
    def body() -> None:
        if dist.get_rank() < 2:
            receive_from_each_other()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            sum(range(1000))

    assert hang(body, ranks=3).cycle == (0, 1)


def test_a_rank_has_returned_while_another_sleeps() -> None:
    def body() -> None:
        if dist.get_rank() == 3:
            time.sleep(PATIENCE)
        elif dist.get_rank() < 2:
            dist.barrier()

    verdict = hang(body, ranks=4)
    assert (verdict.cause, verdict.missed) == ("finished-peer", (2,))
    assert verdict.blocked in (1, 2)  # one of them is proof enough, while the other computes


def test_calls_that_disagree_are_a_mismatch_also_while_others_work() -> None:
    def body() -> None:
        rank = dist.get_rank()
        if rank == 3:
            time.sleep(PATIENCE)
        elif rank < 2:
            dist.all_reduce(torch.ones(1)) if rank else dist.barrier()

    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(body, ranks=4)
    assert isinstance(caught.value.verdict, Mismatch)
    assert caught.value.verdict.missing == (2, 3)


def test_the_ranks_may_catch_it_and_go_on() -> None:
    def body() -> str:
        rank = dist.get_rank()
        if rank < 2:
            with pytest.raises(phalanx.DeadlockError):
                receive_from_each_other()
        else:
            time.sleep(0.3)
        dist.barrier()
        if rank == 0:
            dist.send(torch.ones(2), dst=1)
        elif rank == 1:
            got = torch.zeros(2)
            dist.recv(got, src=0)
            assert got.tolist() == [1, 1]
        return "went on"

    assert phalanx.run(body, ranks=3) == ["went on"] * 3


def test_a_thread_that_waits_in_a_collective_is_joined() -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            thread = threading.Thread(target=dist.barrier, name="reducer")
            thread.start()
            thread.join()
        else:
            dist.recv(torch.empty(2), src=0)

    verdict = hang(body, ranks=2)
    assert verdict.cycle == (0, 1)
    assert [block.view.thread for block in verdict.blocks] == [None, "reducer", None]


def fill_a_queue_after_a_barrier() -> None:
    results: queue.Queue[int] = queue.Queue()

    def work() -> None:
        dist.barrier()
        results.put(1)

    if dist.get_rank() == 0:
        threading.Thread(target=work, name="worker").start()
        results.get()
    else:
        dist.recv(torch.empty(2), src=0)


@pytest.mark.slow  # a thread that an earlier test left behind could fill the queue, too
def test_a_queue_is_to_be_filled_by_a_thread_that_waits() -> None:
    assert hang(fill_a_queue_after_a_barrier, ranks=2).cycle == (0, 1)


@pytest.mark.slow
def test_threads_of_tools_that_python_does_not_list_fill_no_queue() -> None:
    """pytest-xdist has one in every worker."""
    begun, over = threading.Event(), threading.Lock()
    over.acquire()
    scope = {"__name__": "execnet.gateway_base", "begun": begun, "over": over}
    exec("def receive():\n    begun.set()\n    over.acquire()", scope)
    _thread.start_new_thread(scope["receive"], ())
    begun.wait()
    try:
        assert hang(fill_a_queue_after_a_barrier, ranks=2).cycle == (0, 1)
    finally:
        over.release()


def test_idle_workers_of_a_pool_hold_nothing_up() -> None:
    def body() -> None:
        with ThreadPoolExecutor(2) as pool:
            pool.submit(int).result()
            receive_from_each_other()

    assert hang(body, ranks=2).cycle == (0, 1)


def test_a_key_that_nobody_can_set_while_another_rank_sleeps_may_still_come() -> None:
    def body() -> bytes:
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 0:
            return bytes(store.get("late"))
        time.sleep(0.2)
        store.set("late", "here")
        return b""

    assert phalanx.run(body, ranks=2)[0] == b"here"


def test_a_key_that_nobody_can_set() -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            dist.distributed_c10d._get_default_store().get("never")
        elif dist.get_rank() == 1:
            dist.recv(torch.empty(1), src=0)

    verdict = hang(body, ranks=3)
    assert verdict.cause == "nobody-can"
    keys = [block.view.wait.op.key for block in verdict.blocks if block.view.wait]
    assert keys == ["never", None]


# -- what must stay silent ------------------------------------------------------------------


def test_a_thread_that_still_works_may_act_for_its_rank() -> None:
    def body() -> None:
        rank, value = dist.get_rank(), torch.zeros(1)

        def late() -> None:
            time.sleep(0.3)
            dist.send(torch.ones(1), dst=1, tag=7)

        if rank == 0:
            threading.Thread(target=late).start()
            dist.recv(value, src=1)
        else:
            dist.recv(value, src=0, tag=7)
            dist.send(value, dst=0)

    assert_silent(body, ranks=2)


def test_a_wait_with_a_timeout_of_its_own_may_end() -> None:
    def body() -> None:
        rank, value = dist.get_rank(), torch.zeros(1)
        if rank == 0:
            with pytest.raises(RuntimeError, match="Timed out"):
                dist.irecv(value, src=1, tag=3).wait(timedelta(seconds=0.3))
            dist.send(value, dst=1)
        else:
            dist.recv(value, src=0)

    assert_silent(body, ranks=2)


def test_a_callback_may_act_for_a_rank_that_waits() -> None:
    def body() -> None:
        rank = dist.get_rank()
        pair = dist.new_group([0, 2])
        if rank == 0:
            work = dist.all_reduce(torch.ones(1), group=pair, async_op=True)
            work.get_future().then(lambda _: dist.send(torch.ones(1), dst=1))
            dist.recv(torch.empty(1), src=1)
        elif rank == 1:
            dist.recv(torch.empty(1), src=0)
            dist.send(torch.ones(1), dst=0)
        else:
            time.sleep(0.3)
            dist.all_reduce(torch.ones(1), group=pair)

    assert_silent(body, ranks=3)


def test_an_event_that_a_thread_sets_late() -> None:
    def body() -> None:
        done = threading.Event()
        if dist.get_rank() == 0:
            threading.Timer(0.7, done.set).start()
            done.wait()
        dist.barrier()

    assert_silent(body, ranks=2)


def test_a_pool_that_is_given_work_late() -> None:
    def body() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()
            if dist.get_rank() == 0:
                job = pool.submit(lambda: (time.sleep(0.7), dist.barrier()))
                job.result()
            else:
                dist.barrier()

    assert_silent(body, ranks=2)
