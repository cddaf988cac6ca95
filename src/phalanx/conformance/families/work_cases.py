"""`Work` in all its methods, and futures."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.conformance.case_context import Context
from phalanx.conformance.family import Family

family = Family("works")
cases, PROGRAMS = family.cases, family.programs

KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")


def begin(me: Context, kind: str) -> tuple[Any, list[Tensor], list[Tensor]]:
    """An asynchronous operation: its work, its results, and what these must be in the end."""
    size, mine = me.size, torch.full((3,), float(me.rank + 1), device=me.device)
    total = torch.full((3,), size * (size + 1) / 2)
    if kind == "all_reduce":
        return dist.all_reduce(mine, async_op=True), [mine], [total]
    if kind == "broadcast":
        return dist.broadcast(mine, src=0, async_op=True), [mine], [torch.ones(3)]
    if kind == "all_gather":
        rooms = [torch.zeros(3, device=me.device) for _ in range(size)]
        wanted = [torch.full((3,), float(rank + 1)) for rank in range(size)]
        return dist.all_gather(rooms, mine, async_op=True), rooms, wanted
    if kind == "reduce_scatter":
        room = torch.zeros(3, device=me.device)
        work = dist.reduce_scatter(room, [mine.clone() for _ in range(size)], async_op=True)
        return work, [room], [total]
    return dist.barrier(async_op=True), [], []


@family.case("Work", "wait twice", over={"kind": KINDS})
def wait_twice(me: Context, kind: str) -> None:
    work, found, expected = begin(me, kind)
    me.check(work.wait() is not False, "the first wait failed")
    me.check(work.wait() is not False, "the second wait failed")
    me.equal(found, expected, "result")


@family.case("Work", "wait with timeout", over={"kind": KINDS})
def wait_with_timeout(me: Context, kind: str) -> None:
    work, found, expected = begin(me, kind)
    work.wait(timedelta(seconds=10))
    me.equal(found, expected, "result")


@family.case("Work", "is_completed", over={"kind": KINDS})
def is_completed(me: Context, kind: str) -> None:
    work, found, expected = begin(me, kind)
    end = time.monotonic() + 2
    while not work.is_completed() and time.monotonic() < end:
        pass
    me.check(work.is_completed(), "not complete after two seconds of asking")
    me.equal(found, expected, "result when complete")
    work.wait()
    me.check(work.is_completed(), "not complete after wait")


@family.case("Work", "is_success", over={"kind": KINDS})
def is_success(me: Context, kind: str) -> None:
    work, found, expected = begin(me, kind)
    work.wait()
    me.check(work.is_success(), "no success after wait")
    me.equal(found, expected, "result")


@family.case("Work", "exception", over={"kind": KINDS})
def exception(me: Context, kind: str) -> None:
    work, _, _ = begin(me, kind)
    work.wait()
    me.check(work.exception() is None, "an exception although all went well")


@family.case("Work", "result", over={"kind": KINDS[:4]})
def result(me: Context, kind: str) -> None:
    work, found, expected = begin(me, kind)
    work.wait()
    given = work.result()
    flat = [t for each in given for t in (each if isinstance(each, list) else [each])]
    me.equal(flat, expected, "Work.result")
    me.equal(found, expected, "result")


@family.case("Work", "get_future", over={"kind": KINDS})
def get_future(me: Context, kind: str) -> None:
    work, found, expected = begin(me, kind)
    future = work.get_future()
    future.wait()
    me.check(future.done(), "not done after wait")
    me.equal(found, expected, "result")
    work.wait()


@family.case("Work", "then", over={"kind": KINDS[:4]})
def then(me: Context, kind: str) -> None:
    work, found, expected = begin(me, kind)
    seen: list[Any] = []

    def callback(future: Any) -> int:
        seen.append(future.value())
        return 42

    me.equal(work.get_future().then(callback).wait(), 42, "value of then")
    me.check(len(seen) == 1, "the callback did not run once")
    me.equal(found, expected, "result")


@family.case("Work", "then of then")
def then_of_then(me: Context) -> None:
    work, _, expected = begin(me, "all_reduce")
    first = work.get_future().then(lambda future: future.value()[0] * 2)
    second = first.then(lambda future: future.value() + 1)
    me.equal(second.wait(), expected[0] * 2 + 1, "value of the second callback")


@family.case("Work", "future value", over={"kind": ("all_reduce", "broadcast")})
def future_value(me: Context, kind: str) -> None:
    work, _, expected = begin(me, kind)
    me.equal(list(work.get_future().wait()), expected, "value of the future")


@family.case("Work", "then after wait")
def then_after_wait(me: Context) -> None:
    work, _, expected = begin(me, "all_reduce")
    work.wait()
    value = work.get_future().then(lambda future: future.value()[0] + 1).wait()
    me.equal(value, expected[0] + 1, "value of then")


@family.case("Work", "never waiting", over={"kind": KINDS})
def never_waiting(me: Context, kind: str) -> None:
    """A work without a wait must not disturb the next operation of the group."""
    work, _, _ = begin(me, kind)
    del work
    found = torch.ones(2, device=me.device)
    dist.all_reduce(found)
    me.equal(found, torch.full((2,), float(me.size)), "the next operation")


@family.case("Work", "source_rank", least=2)
def source_rank(me: Context) -> None:
    room = torch.zeros(2, device=me.device)
    if me.rank == 0:
        work = dist.irecv(room, src=1)
        assert work is not None
        work.wait()
        me.check(callable(work.source_rank), "Work has no source_rank")
        me.equal(room, torch.ones(2), "message")
    elif me.rank == 1:
        dist.send(torch.ones(2, device=me.device), dst=0)


@family.case("Work", "source_rank of any source", least=2, needs="any source")
def source_rank_of_any(me: Context) -> None:
    last, group = me.size - 1, me.fresh()
    if me.rank == 0:
        room = torch.zeros(2, device=me.device)
        work = dist.irecv(room, group=group)
        assert work is not None
        work.wait()
        me.equal(work.source_rank(), last, "source_rank")
        me.equal(room, torch.full((2,), 5.0), "message")
    elif me.rank == last:
        dist.send(torch.full((2,), 5.0, device=me.device), dst=0, group=group)


@family.case(
    "Work",
    "timeout in vain",
    ranks=(2, 3),
    least=2,
    alone=True,
    raises=("RuntimeError",),
    everywhere=False,
)
def timeout_in_vain(me: Context) -> None:
    """Rank 0 waits for a rank that does not come."""
    group = me.fresh(timeout=timedelta(seconds=5))
    if me.rank == 0:
        work = dist.all_reduce(torch.ones(1, device=me.device), group=group, async_op=True)
        work.wait(timedelta(milliseconds=100))


@family.case(
    "Work",
    "group timeout in vain",
    ranks=(2, 3),
    least=2,
    alone=True,
    raises=("RuntimeError",),
    everywhere=False,
)
def group_timeout_in_vain(me: Context) -> None:
    group = me.fresh(timeout=timedelta(milliseconds=200))
    if me.rank == 0:
        dist.all_reduce(torch.ones(1, device=me.device), group=group)


@family.case(
    "Work",
    "receive in vain",
    ranks=(2, 3),
    least=2,
    alone=True,
    raises=("RuntimeError",),
    everywhere=False,
)
def receive_in_vain(me: Context) -> None:
    group = me.fresh(timeout=timedelta(seconds=5))
    if me.rank == 0:
        work = dist.irecv(torch.ones(1, device=me.device), src=1, group=group)
        assert work is not None
        work.wait(timedelta(milliseconds=100))
