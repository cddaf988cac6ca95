"""Threads of one rank on one group: what is a race, and what has an order of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend.evidence import thread_holds
from phalanx.core.strand import here
from tests.support import assert_silent


def in_thread(body: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=body)
    thread.start()
    return thread


def several_calls_each() -> None:
    def beside() -> None:
        for _ in range(20):
            dist.all_reduce(torch.ones(1))

    thread = in_thread(beside)
    for _ in range(20):
        dist.all_reduce(torch.ones(1))
    thread.join()


def one_call_each_of_another_kind() -> None:
    def beside() -> None:
        dist.barrier()

    thread = in_thread(beside)
    dist.all_reduce(torch.ones(1))
    thread.join()


def two_threads_beside_the_main_one() -> None:
    threads = [in_thread(several) for _ in range(2)]
    for thread in threads:
        thread.join()


def several() -> None:
    for _ in range(20):
        dist.all_reduce(torch.ones(1))


def objects() -> None:
    def beside() -> None:
        for _ in range(5):
            dist.all_gather_object([None] * 2, "beside")

    thread = in_thread(beside)
    for _ in range(5):
        dist.all_gather_object([None] * 2, "main")
    thread.join()


def messages_to_one_peer() -> None:
    def exchange() -> None:
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), dst=1)
        else:
            dist.recv(torch.empty(1), src=0)

    thread = in_thread(exchange)
    exchange()
    thread.join()


def asynchronous_calls() -> None:
    works = []

    def issue() -> None:
        for _ in range(2):
            works.append(dist.all_reduce(torch.ones(1), async_op=True))

    thread = in_thread(issue)
    issue()
    thread.join()
    for work in works:
        work.wait()


def a_callback_beside_a_call() -> None:
    def again(future):
        dist.all_reduce(torch.ones(1))
        return future.value()

    for _ in range(5):
        done = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(again)
        dist.all_reduce(torch.ones(1))
        done.wait()


def a_callback_whose_future_nobody_asks() -> None:
    called = threading.Event()

    def again(_) -> None:
        dist.all_reduce(torch.ones(1))
        called.set()

    dist.all_reduce(torch.ones(1), async_op=True).get_future().then(again)
    dist.all_reduce(torch.ones(1))
    called.wait()


def a_pool() -> None:
    with ThreadPoolExecutor(2) as pool:
        for task in [pool.submit(several) for _ in range(2)]:
            task.result()


@pytest.mark.parametrize(
    "program",
    [
        several_calls_each,
        pytest.param(one_call_each_of_another_kind, marks=pytest.mark.slow),  # by luck: the
        two_threads_beside_the_main_one,
        objects,
        pytest.param(messages_to_one_peer, marks=pytest.mark.slow),  # calls must come together
        asynchronous_calls,
        a_callback_beside_a_call,
        a_callback_whose_future_nobody_asks,
        a_pool,
    ],
    ids=lambda program: program.__name__,
)
@pytest.mark.parametrize("seed", [0, 2])
def test_calls_with_nothing_that_orders_them_are_an_error(program, seed: int) -> None:
    with pytest.raises(phalanx.ThreadRaceError) as caught:
        phalanx.run(program, ranks=2, seed=seed)
    verdict = caught.value.verdict
    assert verdict is not None and verdict.kind == "thread-race" and len(verdict.ranks) == 1
    one, other = verdict.blocks
    assert one.notes != other.notes
    assert {one.op.site.file, other.op.site.file} <= {
        "tests/checks/test_thread_race_in_ranks.py"
    }


def test_it_is_also_an_error_of_torch_in_the_main_thread() -> None:
    with pytest.raises(dist.DistError):
        phalanx.run(several_calls_each, ranks=2)


# -- correct programs --------------------------------------------------------------------


def a_group_each() -> None:
    group = dist.new_group()

    def beside() -> None:
        for _ in range(10):
            dist.all_reduce(torch.ones(1), group=group)

    thread = in_thread(beside)
    for _ in range(10):
        dist.all_reduce(torch.ones(1))
    thread.join()


def started_after_and_joined_before() -> None:
    for _ in range(5):
        dist.all_reduce(torch.ones(1))
        in_thread(several).join()


def only_in_a_thread() -> None:
    in_thread(several).join()


def handed_over_by_a_queue() -> None:
    asked: queue.Queue[torch.Tensor | None] = queue.Queue()
    answered: queue.Queue[None] = queue.Queue()

    def serve() -> None:
        while (tensor := asked.get()) is not None:
            dist.all_reduce(tensor)
            answered.put(None)

    thread = in_thread(serve)
    for _ in range(10):
        dist.all_reduce(torch.ones(1))
        asked.put(torch.ones(1))
        answered.get()
    asked.put(None)
    thread.join()


def told_between_call_and_wait() -> None:
    go = threading.Event()

    def follow() -> None:
        go.wait()
        dist.all_reduce(torch.ones(1))

    thread = in_thread(follow)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    go.set()
    work.wait()
    thread.join()


def messages_with_tags_of_their_own() -> None:
    peer = 1 - dist.get_rank()

    def exchange(tag: int) -> None:
        for _ in range(5):
            works = [
                dist.isend(torch.ones(1), peer, tag=tag),
                dist.irecv(torch.ones(1), peer, tag=tag),
            ]
            for work in works:
                work.wait()

    thread = in_thread(lambda: exchange(1))
    exchange(2)
    thread.join()


def callbacks_that_communicate() -> None:
    def again(future):
        dist.all_reduce(torch.ones(1))
        return future.value()

    for _ in range(5):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.get_future().then(again).wait()


def a_future_of_a_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(5):
            dist.all_reduce(torch.ones(1))
            pool.submit(several).result()


@pytest.mark.parametrize(
    "program",
    [
        a_group_each,
        started_after_and_joined_before,
        only_in_a_thread,
        handed_over_by_a_queue,
        told_between_call_and_wait,
        messages_with_tags_of_their_own,
        callbacks_that_communicate,
        a_future_of_a_pool,
    ],
    ids=lambda program: program.__name__,
)
def test_threads_that_are_ordered_or_apart_are_left_alone(program) -> None:
    assert_silent(program)


def test_threads_that_never_call_hold_a_rank_up_a_few_times_only() -> None:
    def body() -> int:
        for _ in range(40):
            thread = in_thread(lambda: threading.Event().wait(0.001))
            dist.all_reduce(torch.ones(1))
            thread.join()
        strand = here.strand
        assert strand is not None
        return sum(strand.local.holds.values())

    most = thread_holds.MOST_HELD * thread_holds.HOLDS
    assert 0 < max(phalanx.run(body, ranks=2)) <= most
