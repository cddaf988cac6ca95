"""`Work` and its `Future`: when an operation is complete, who hears of it, and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import phalanx
from tests.backend.cases import MOVING, REDUCING, Case, Member

MINUTE = timedelta(minutes=1)
UNGUARDED = "all,-in-flight-buffer,-unwaited-work"
"""For programs that look at results before they wait, to see when these are there."""


def reduce_later(tensor: Tensor | None = None) -> Any:
    return dist.all_reduce(torch.ones(2) if tensor is None else tensor, async_op=True)


def before_and_after(issue: Callable[[], Any], look: Callable[[Any], Any]) -> Any:
    """Rank 0 issues and looks, rank 1 issues after that, and rank 0 looks again.

    Barriers on a second group order the two.
    """

    def program() -> Any:
        aside = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            issued = issue()
            before = look(issued)
            dist.barrier(group=aside)
            dist.barrier(group=aside)
            return before, look(issued)
        dist.barrier(group=aside)
        issue()
        dist.barrier(group=aside)
        return None

    return phalanx.run(program, ranks=2, checks=UNGUARDED)[0]


class LateMember(Member):
    """Keeps the work instead of waiting for it."""

    work: Any = None

    def finish(self, work: Any) -> None:
        self.work = work


@pytest.mark.usefixtures("no_rules")
@pytest.mark.parametrize("case", [*REDUCING, *MOVING], ids=str)
def test_complete_when_the_last_member_has_come(case: Case) -> None:
    def issue() -> Any:
        me = LateMember(None, dist.get_rank(), 2, later=True)
        case.call(me, case.bring(lambda rank, index: torch.ones(2, 2), me.rank, 2))
        return me.work

    seen = before_and_after(issue, lambda work: (work.is_completed(), work.is_success()))
    assert seen == ((False, False), (True, True))


def test_a_barrier_is_complete_when_the_last_member_has_come() -> None:
    seen = before_and_after(
        lambda: dist.barrier(async_op=True), lambda work: work.is_completed()
    )
    assert seen == (False, True)


def test_the_result_is_not_there_before() -> None:
    def issue() -> Tensor:
        tensor = torch.tensor([1.0 + dist.get_rank()])
        reduce_later(tensor)
        return tensor

    assert before_and_after(issue, lambda tensor: tensor.item()) == (1.0, 3.0)


def test_a_future_is_done_when_the_last_member_has_come() -> None:
    seen = before_and_after(lambda: reduce_later().get_future(), lambda future: future.done())
    assert seen == (False, True)


def test_waiting_twice() -> None:
    def program() -> list[Any]:
        tensor = torch.ones(2)
        work = reduce_later(tensor)
        return [work.wait(), work.wait(), work.wait(MINUTE), tensor.tolist()]

    assert phalanx.run(program, ranks=2) == [[True, True, True, [2.0, 2.0]]] * 2


def test_never_waiting() -> None:
    tensors = [torch.ones(2) for _ in range(3)]

    def program() -> None:
        reduce_later(tensors[dist.get_rank()])

    with pytest.warns(phalanx.PhalanxWarning, match="never waited for all_reduce"):
        phalanx.run(program, ranks=3)
    assert [tensor.tolist() for tensor in tensors] == [[3.0, 3.0]] * 3


def test_never_waiting_for_a_member_that_never_comes() -> None:
    def program() -> str:
        if dist.get_rank() == 0:
            reduce_later()
        return "ended"

    with pytest.warns(phalanx.PhalanxWarning, match="rank 1 never did"):
        assert phalanx.run(program, ranks=2) == ["ended", "ended"]


@pytest.mark.parametrize("poll", ["work", "success", "future"])
def test_polling_ends(poll: str) -> None:
    def program() -> float:
        tensor = torch.tensor([1.0 + dist.get_rank()])
        work = reduce_later(tensor)
        is_done = {
            "work": lambda: work.is_completed(),
            "success": lambda: work.is_success(),
            "future": lambda: work.get_future().done(),
        }[poll]
        while not is_done():
            pass
        return tensor.item()

    assert phalanx.run(program, ranks=3) == [6.0] * 3


def test_polling_a_message_ends() -> None:
    def program() -> float:
        tensor = torch.tensor([1.0 + dist.get_rank()])
        operation = dist.isend if dist.get_rank() == 0 else dist.irecv
        work = operation(tensor, 1 - dist.get_rank())
        while not work.is_completed():
            pass
        return tensor.item()

    assert phalanx.run(program, ranks=2) == [1.0, 1.0]


def test_waiting_in_another_order_than_issued() -> None:
    def program() -> list[float]:
        tensors = [torch.tensor([float(n)]) for n in range(4)]
        works = [reduce_later(tensor) for tensor in tensors]
        order = (2, 0, 3, 1) if dist.get_rank() else (3, 2, 1, 0)
        for index in order:
            works[index].wait()
        return [tensor.item() for tensor in tensors]

    assert phalanx.run(program, ranks=2) == [[0.0, 2.0, 4.0, 6.0]] * 2


def test_result_and_success() -> None:
    def program() -> Any:
        given, output = torch.ones(1), torch.zeros(2)
        reduced = reduce_later(given)
        reduced.wait()
        gathered = dist.all_gather(list(output.chunk(2)), given, async_op=True)
        gathered.wait()
        assert reduced.is_success() and reduced.exception() is None
        assert reduced.result()[0] is given
        return reduced.result()[0].item(), [tensor.item() for tensor in gathered.result()]

    assert phalanx.run(program, ranks=2) == [(2.0, [2.0, 2.0])] * 2


@pytest.mark.parametrize("call", ["all_reduce", "recv"])
def test_wait_gives_up_after_its_timeout(call: str) -> None:
    """Rank 1 comes only after rank 0 has given up; the virtual clock lets a minute pass."""

    def program() -> str:
        aside = dist.new_group([0, 1])
        text = ""
        if dist.get_rank() == 0:
            work = reduce_later() if call == "all_reduce" else dist.irecv(torch.ones(1), 1)
            with pytest.raises(dist.DistBackendError) as caught:
                work.wait(MINUTE)
            assert isinstance(caught.value, phalanx.PhalanxError)
            text = str(caught.value)
        dist.barrier(group=aside)
        return text

    text = phalanx.run(program, ranks=2, clock="virtual")[0]
    assert text == f"{call}: Timed out waiting 60000ms for the other ranks"


def test_a_timeout_that_is_not_needed() -> None:
    def program() -> bool:
        return reduce_later().wait(timedelta(milliseconds=200))

    assert phalanx.run(program, ranks=3) == [True] * 3


@pytest.mark.parametrize("waited", [False, True], ids=["at once", "after wait"])
def test_the_value_of_a_future(waited: bool) -> None:
    def program() -> Any:
        tensor = torch.ones(2)
        work = reduce_later(tensor)
        if waited:
            work.wait()
        future = work.get_future()
        value = future.wait()
        assert value[0] is tensor and future.value()[0] is tensor
        assert work.get_future() is future
        return value[0].tolist(), future.done()

    assert phalanx.run(program, ranks=2) == [([2.0, 2.0], True)] * 2


def test_a_future_of_what_was_waited_for_has_its_value() -> None:
    def program() -> float:
        work = reduce_later()
        work.wait()
        return work.get_future().value()[0][0].item()

    assert phalanx.run(program, ranks=2) == [2.0, 2.0]


def test_chains_of_then() -> None:
    def program() -> Any:
        future = reduce_later().get_future()
        halved = future.then(lambda f: f.value()[0] / 2)
        text = halved.then(lambda f: f"rank {dist.get_rank()}: {f.value().tolist()}")
        return text.wait(), halved.wait().tolist()

    expected = [(f"rank {rank}: [1.0, 1.0]", [1.0, 1.0]) for rank in range(2)]
    assert phalanx.run(program, ranks=2) == expected


def test_then_after_the_fact() -> None:
    def program() -> float:
        future = reduce_later().get_future()
        future.wait()
        return future.then(lambda f: f.value()[0][0].item() + 1).wait()

    assert phalanx.run(program, ranks=3) == [4.0] * 3


def test_callbacks_run_as_their_own_rank_and_in_the_order_of_completion() -> None:
    heard: dict[int, list[Any]] = {0: [], 1: [], 2: []}

    def program() -> None:
        mine = dist.get_rank()
        for number in range(3):
            future = reduce_later().get_future()
            future.add_done_callback(
                lambda f, number=number: heard[mine].append((dist.get_rank(), number))
            )
        dist.barrier()

    phalanx.run(program, ranks=3)
    assert heard == {rank: [(rank, 0), (rank, 1), (rank, 2)] for rank in range(3)}


def test_a_callback_may_communicate() -> None:
    """As DDP's communication hooks do."""

    def program() -> float:
        tensor = torch.tensor([1.0])

        def again(future: Any) -> float:
            dist.all_reduce(tensor)
            return tensor.item()

        return reduce_later(tensor).get_future().then(again).wait()

    assert phalanx.run(program, ranks=3) == [9.0] * 3


def test_an_error_in_a_callback_comes_out_of_the_chain() -> None:
    def program() -> None:
        def fail(future: Any) -> None:
            raise KeyError("in the callback")

        chained = reduce_later().get_future().then(fail)
        with pytest.raises(
            RuntimeError, match="callback: KeyError: 'in the callback'"
        ) as caught:
            chained.wait()
        assert isinstance(caught.value.__cause__, KeyError)

    phalanx.run(program, ranks=2)


def test_waiting_for_many_futures_at_once() -> None:
    """`collect_all` waits natively, where we do not see it."""

    def program() -> list[float]:
        futures = [reduce_later(torch.tensor([float(n)])).get_future() for n in range(3)]
        return [f.value()[0].item() for f in torch.futures.collect_all(futures).wait()]

    assert phalanx.run(program, ranks=2) == [[0.0, 2.0, 4.0]] * 2


def test_a_thread_of_the_rank_may_wait() -> None:
    def program() -> list[Any]:
        tensor, seen = torch.ones(1), []
        work = reduce_later(tensor)
        thread = threading.Thread(target=lambda: seen.append((work.wait(), tensor.item())))
        thread.start()
        thread.join()
        return seen

    assert phalanx.run(program, ranks=2) == [[(True, 2.0)]] * 2


def issue_mismatch() -> Any:
    """Rank 1 calls something else than the others."""
    if dist.get_rank() == 1:
        return dist.broadcast(torch.ones(2), src=0, async_op=True)
    return reduce_later()


WAYS_TO_WAIT: dict[str, Callable[[Any], Any]] = {
    "wait": lambda work: work.wait(),
    "wait with timeout": lambda work: work.wait(MINUTE),
    "future": lambda work: work.get_future().wait(),
    "chain": lambda work: work.get_future().then(lambda f: f.value()).wait(),
}


@pytest.mark.parametrize("way", WAYS_TO_WAIT)
def test_a_mismatch_is_raised_in_every_rank(way: str) -> None:
    def program() -> str:
        work = issue_mismatch()
        with pytest.raises(phalanx.CollectiveMismatchError) as caught:
            WAYS_TO_WAIT[way](work)
        assert isinstance(caught.value, dist.DistError)
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), phalanx.CollectiveMismatchError)
        return str(caught.value).splitlines()[0]

    text = "rank 1 called broadcast where ranks 0, 2 called all_reduce"
    assert phalanx.run(program, ranks=3) == [text] * 3


def test_a_mismatch_that_nobody_catches_is_what_run_raises() -> None:
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(lambda: issue_mismatch().wait(), ranks=3)
    assert caught.value.verdict is not None
    assert caught.value.verdict.ranks == (1,)


def test_waiting_for_a_member_that_has_ended_is_a_deadlock() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            reduce_later().wait()

    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(program, ranks=2)
    assert caught.value.verdict is not None
    assert caught.value.verdict.cause == "finished-peer"


def test_a_thread_of_nobody_may_not_wait() -> None:
    works: list[Any] = []
    with pytest.warns(phalanx.PhalanxWarning, match="a receive that no send answered"):
        phalanx.run(lambda: works.append(issue_for_later()), ranks=2)
    with pytest.raises(RuntimeError, match="belongs to no rank"):
        works[0].wait()


def issue_for_later() -> Any:
    return dist.irecv(torch.ones(1), 1 - dist.get_rank())


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_callbacks_run_while_the_rank_waits_for_them_with_pythons_own_means(
    in_a_thread: bool,
) -> None:
    def communicate() -> bool:
        called = threading.Event()
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.get_future().add_done_callback(lambda future: called.set())
        return called.wait(20)

    def program() -> bool:
        if not in_a_thread:
            return communicate()
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(communicate()))
        thread.start()
        thread.join()
        return found[0]

    assert phalanx.run(program, ranks=2) == [True, True]


def test_callbacks_run_at_the_latest_when_the_rank_ends() -> None:
    called: list[int] = []

    def program() -> None:
        rank = dist.get_rank()
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.get_future().add_done_callback(lambda future: called.append(rank))
        dist.barrier()

    phalanx.run(program, ranks=3)
    assert sorted(called) == [0, 1, 2]


def test_a_message_that_was_given_up_stays_given_up() -> None:
    def program() -> list[str]:
        texts = []
        if dist.get_rank() == 0:
            work = dist.irecv(torch.zeros(1), 1)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="recv: Timed out waiting") as caught:
                    work.wait(timedelta(seconds=0.01))
                texts.append(str(caught.value))
        dist.barrier()
        return texts

    first, _ = phalanx.run(program, ranks=2)
    assert len(first) == 2 and first[0] == first[1]


@pytest.mark.parametrize("asked", ["then", "add_done_callback"])
def test_callbacks_of_ranks_that_have_returned(asked: str) -> None:
    called: list[tuple[int, float]] = []

    def program() -> None:
        tensor = torch.ones(1)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        getattr(future, asked)(lambda done: called.append((dist.get_rank(), tensor.item())))

    phalanx.run(program, ranks=3, strict=True)
    assert sorted(called) == [(0, 3.0), (1, 3.0), (2, 3.0)]
