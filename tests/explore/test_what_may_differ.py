"""Each source of difference between executions is explored; what nobody can tell apart, once.

The numbers of behaviours are those of counting by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def rank() -> int:
    return dist.get_rank()


def everything(program: Callable[[], Any], ranks: int, **given: Any) -> Any:
    given = {"strategy": "exhaustive", "compare": "none", "timeout": 20, **given}
    return phalanx.explore(program, ranks=ranks, store=None, raises=False, **given)


def values_of(program: Callable[[], Any], ranks: int, **given: Any) -> set[Any]:
    """What the ranks return, by all orders."""
    seen = set()

    def noted() -> None:
        values[dist.get_rank()] = program()
        left.append(dist.get_rank())
        if len(left) == ranks:
            seen.add(tuple(values[each] for each in range(ranks)))
            left.clear()

    values: dict[int, Any] = {}
    left: list[int] = []
    found = everything(noted, ranks, **given)
    assert found.complete and not found.failures
    return seen


# -- stores ---------------------------------------------------------------------------------


def counts() -> Any:
    return store().add("n", 1)


def uses_its_own() -> Any:
    return store().add(f"n{rank()}", 1)


def claims() -> Any:
    return store().compare_set("lock", "", str(rank()))


def reads_what_is_set() -> Any:
    if rank():
        store().set("k", "1")
        return None
    return store().get("k")


def waits_while_others_write() -> Any:
    """The first or the second value, in both orders: what is read before the second."""
    if rank():
        store().set("k", str(rank()))
        return None
    return store().get("k")


def looks_once() -> Any:
    if rank():
        store().set("k", "1")
        return None
    return store().check(["k"])


def looks_while_it_comes_and_goes() -> Any:
    if rank():
        return store().check(["k"])
    store().set("k", "1")
    return store().delete_key("k")


def waits_for_what_is_deleted() -> Any:
    if rank() == 0:
        store().set("k", "1")
        return store().delete_key("k")
    if rank() == 1:
        return store().check(["k"])
    store().wait(["k"])
    return None


def takes_from_a_queue() -> Any:
    if rank() == 0:
        store().queue_push("q", "a")
        store().queue_push("q", "b")
        return None
    return store().queue_pop("q")


def works_in_phases() -> Any:
    """A barrier orders: only the two that add afterwards can be told apart."""
    if rank() == 0:
        store().set("begun", "1")
    dist.barrier()
    return store().get("begun") if rank() == 0 else store().add("n", 1)


@pytest.mark.parametrize(
    ("program", "ranks", "behaviours"),
    [
        (counts, 2, 2),
        (counts, 3, 6),
        (counts, 4, 24),
        (uses_its_own, 4, 1),
        (claims, 3, 6),
        (reads_what_is_set, 2, 1),
        (waits_while_others_write, 3, 4),
        (looks_once, 2, 2),
        (looks_while_it_comes_and_goes, 2, 3),
        (takes_from_a_queue, 3, 4),
        (works_in_phases, 3, 2),
    ],
)
def test_orders_on_a_store(program: Callable[[], Any], ranks: int, behaviours: int) -> None:
    found = everything(program, ranks)
    assert found.complete
    assert (found.behaviours, found.schedules) == (behaviours, behaviours)


def test_a_key_that_is_deleted_may_never_be_seen() -> None:
    found = everything(waits_for_what_is_deleted, 3)
    assert found.complete
    assert [each.kind for each in found.failures] == ["deadlock"]
    assert 0 < found.failures[0].schedules < found.schedules


# -- polling --------------------------------------------------------------------------------


def polls_a_key() -> Any:
    if rank():
        store().set("k", "1")
        return None
    looks = 0
    while not store().check(["k"]):
        looks += 1
    return looks


def polls_a_counter() -> Any:
    if rank():
        store().add("n", 1)
        return None
    looks = 0
    while store().add("n", 0) < 1:
        looks += 1
    return looks


def takes_a_lock() -> Any:
    me = str(rank() + 1)
    while store().compare_set("lock", "", me) != me.encode():
        pass
    store().delete_key("lock")
    return store().add("n", 1)


def gives_up_after_three_looks() -> Any:
    if rank():
        store().set("k", "1")
        return None
    return any(store().check(["k"]) for _ in range(3))


@pytest.mark.parametrize("program", [polls_a_key, polls_a_counter])
def test_a_loop_looks_in_vain_or_not(program: Callable[[], Any]) -> None:
    assert values_of(program, 2) == {(0, None), (1, None)}


@pytest.mark.parametrize("strategy", ["pos", "pct", "random", "exhaustive"])
def test_a_loop_that_takes_a_lock_ends_in_every_order(strategy: str) -> None:
    found = everything(takes_a_lock, 2, strategy=strategy, schedules=60)
    assert not found.failures
    assert found.complete or strategy != "exhaustive"


def test_a_loop_that_gives_up_is_let_give_up() -> None:
    assert values_of(gives_up_after_three_looks, 2) == {(True, None), (False, None)}


def test_polling_for_what_never_comes_is_a_deadlock() -> None:
    def program() -> None:
        if rank():
            dist.barrier()
        while not store().check(["k"]):
            pass

    found = everything(program, 2, schedules=2)
    assert {each.kind for each in found.failures} == {"deadlock"}


# -- messages -------------------------------------------------------------------------------


def receives_from_any() -> Any:
    tensor = torch.zeros(1)
    if rank():
        dist.send(tensor + rank(), 0)
        return None
    return tuple(dist.recv(tensor) for _ in range(dist.get_world_size() - 1))


def receives_in_order() -> Any:
    tensor = torch.zeros(1)
    if rank():
        for number in range(3):
            dist.send(tensor + number, 0)
        return None
    found = []
    for _ in range(3):
        dist.recv(tensor, 1)
        found.append(tensor.item())
    return tuple(found)


def receives_twice_of_each() -> Any:
    """Whose messages come in which order: those of one rank cannot overtake each other."""
    tensor = torch.zeros(1)
    if rank():
        for number in range(2):
            dist.send(tensor + 10 * rank() + number, 0)
        return None
    found = []
    for _ in range(4):
        dist.recv(tensor)
        found.append(int(tensor.item()))
    return tuple(found)


def receives_before_and_after() -> Any:
    """Rank 2 sends once rank 0 has answered rank 1: its message cannot come first."""
    tensor = torch.zeros(1)
    if rank() == 0:
        first = dist.recv(tensor)
        store().set("go", "1")
        return first, dist.recv(tensor)
    if rank() == 2:
        store().wait(["go"])
    dist.send(tensor, 0)
    return None


def begins_to_receive() -> Any:
    tensor, other = torch.zeros(1), torch.zeros(1)
    if rank():
        dist.send(tensor + rank(), 0)
        return None
    works = [dist.irecv(tensor), dist.irecv(other)]
    for work in works:
        work.wait()
    return int(tensor.item()), int(other.item())


@pytest.mark.parametrize(("ranks", "orders"), [(2, 1), (3, 2), (4, 6), (5, 24)])
def test_who_is_received_from(ranks: int, orders: int) -> None:
    found = everything(receives_from_any, ranks)
    assert found.complete and found.behaviours == orders
    assert len(values_of(receives_from_any, ranks)) == orders


def test_messages_of_one_rank_keep_their_order() -> None:
    found = everything(receives_in_order, 2)
    assert (found.complete, found.schedules) == (True, 1)
    seen = {values[0] for values in values_of(receives_twice_of_each, 3)}
    assert len(seen) == 6  # of four receives, which two are of rank 1
    assert all(each.index(10) < each.index(11) for each in seen)
    assert all(each.index(20) < each.index(21) for each in seen)


def test_a_message_that_needs_another_one_comes_after_it() -> None:
    assert values_of(receives_before_and_after, 3) == {((1, 2), None, None)}


def test_receives_that_are_under_way() -> None:
    assert values_of(begins_to_receive, 3) == {((1, 2), None, None), ((2, 1), None, None)}


# -- asynchronous operations ----------------------------------------------------------------


def asks_once() -> Any:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    is_complete = work.is_completed()
    work.wait()
    return is_complete


def asks_until_it_is() -> Any:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    asked = 0
    while not work.is_completed():
        asked += 1
    return asked


def asks_a_future() -> Any:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    is_complete = work.get_future().done()
    work.wait()
    return is_complete


def asks_again_after_it_was() -> Any:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    asked = work.is_completed(), work.is_completed()
    work.wait()
    return asked


def asks_for_what_waits_for_it() -> Any:
    """Rank 1 begins once rank 0 has asked: it cannot have been complete."""
    if rank():
        store().wait(["asked"])
        dist.all_reduce(torch.ones(1))
        return None
    work = dist.all_reduce(torch.ones(1), async_op=True)
    is_complete = work.is_completed()
    store().set("asked", "1")
    work.wait()
    return is_complete


def trains_until_it_is_told() -> Any:
    if rank() == 0:
        told = dist.isend(torch.ones(1), 1)
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
        told.wait()
        return None
    told = dist.irecv(torch.ones(1), 0)
    steps = 0
    while steps < 3 and not told.is_completed():
        dist.all_reduce(torch.ones(1))
        steps += 1
    for _ in range(3 - steps):
        dist.all_reduce(torch.ones(1))
    told.wait()
    return steps


BOTH = {(one, other) for one in (False, True) for other in (False, True)}


@pytest.mark.parametrize("program", [asks_once, asks_a_future])
def test_who_asks_may_see_it_complete(program: Callable[[], Any]) -> None:
    assert values_of(program, 2) == BOTH


def test_who_polls_asks_in_vain_or_not() -> None:
    assert values_of(asks_until_it_is, 2) == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_who_makes_calls_between_looks_may_make_any_number() -> None:
    assert values_of(trains_until_it_is_told, 2) == {(None, steps) for steps in range(4)}


def test_what_was_complete_stays_so() -> None:
    seen = {one for values in values_of(asks_again_after_it_was, 2) for one in values}
    assert seen == {(False, False), (False, True), (True, True)}


def test_nothing_is_complete_before_its_members_come() -> None:
    found = everything(asks_for_what_waits_for_it, 2)
    assert (found.complete, found.behaviours) == (True, 1)
    assert values_of(asks_for_what_waits_for_it, 2) == {(False, None)}


def calls_back() -> Any:
    called: list[str] = []
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    for work, name in zip(works, "abc", strict=True):
        work.get_future().then(lambda _, name=name: called.append(name))
    for work in works:
        work.wait()
    return "".join(called)


def test_callbacks_of_operations_may_overtake_each_other() -> None:
    seen = {values[0] for values in values_of(calls_back, 2)}
    assert seen == {"abc", "acb", "bac", "bca", "cab", "cba"}


# -- threads --------------------------------------------------------------------------------


def starts_threads() -> Any:
    numbers = {}

    def work(name: str) -> None:
        numbers[name] = int(store().add("n", 1))

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return numbers["a"], numbers["b"]


def test_threads_of_ranks_come_in_all_orders() -> None:
    seen = values_of(starts_threads, 2)
    assert len(seen) == 24


def submits_to_a_pool() -> Any:
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(store().add, "n", 1) for _ in "ab"]
        return tuple(int(job.result()) for job in jobs)


def test_jobs_of_pools_come_in_all_orders() -> None:
    seen = values_of(submits_to_a_pool, 2)
    assert len(seen) == 24


def counts_beside_a_job() -> Any:
    number = [0]

    def count(key: str) -> None:
        store().set(key, "1")
        before = number[0]
        store().set(key, "2")
        number[0] = before + 1

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(count, f"job of {rank()}")
        count(f"{rank()}")
        job.result()
    return number[0]


def test_jobs_share_the_memory_of_their_rank() -> None:
    assert {one for values in values_of(counts_beside_a_job, 2) for one in values} == {1, 2}
