"""When operations complete on a virtual clock whose network has a cost."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.costs import alpha_beta
from phalanx.errors import PhalanxError
from phalanx.system import monotonic

NET = alpha_beta(latency=1.0, bandwidth=1e6)
MEGABYTE = 250_000  # floats
ALL_REDUCE = 2 * (1.0 + 0.5)  # of two ranks: two steps of half a megabyte


def run(program: Any, ranks: int = 2, **options: Any) -> list[Any]:
    given = {"clock": "virtual", "compute": "free", "network": NET, **options}
    return phalanx.run(program, ranks=ranks, **given)


def since(start: float) -> float:
    return round(time.monotonic() - start, 6)


def test_a_collective_begins_when_its_last_member_comes() -> None:
    def program() -> float:
        start = time.monotonic()
        time.sleep(7.0 * dist.get_rank())
        dist.all_reduce(torch.ones(MEGABYTE))
        return since(start)

    assert run(program) == [7.0 + ALL_REDUCE] * 2


def test_what_a_rank_does_meanwhile_takes_no_time_of_its_own() -> None:
    def program() -> tuple[float, float]:
        start = time.monotonic()
        work = dist.all_reduce(torch.ones(MEGABYTE), async_op=True)
        time.sleep(2.0)
        work.wait()
        hidden = since(start)
        work = dist.all_reduce(torch.ones(MEGABYTE), async_op=True)
        time.sleep(20.0)
        work.wait()
        return hidden, since(start)

    assert run(program) == [(ALL_REDUCE, ALL_REDUCE + 20.0)] * 2


def test_operations_of_a_group_follow_each_other_and_those_of_two_do_not() -> None:
    def program() -> list[float]:
        groups = [dist.group.WORLD, dist.new_group([0, 1])]
        found = []
        for second in groups:
            start = time.monotonic()
            works = [
                dist.all_reduce(torch.ones(MEGABYTE), group=group, async_op=True)
                for group in (groups[0], second)
            ]
            for work in works:
                work.wait()
            found.append(since(start))
        return found

    assert run(program) == [[2 * ALL_REDUCE, ALL_REDUCE]] * 2


def test_messages_follow_each_other_on_a_link_both_ways_at_once() -> None:
    def program() -> float:
        start = time.monotonic()
        peer = 1 - dist.get_rank()
        works = [dist.irecv(torch.ones(MEGABYTE), peer, tag=tag) for tag in range(3)]
        works += [dist.isend(torch.ones(MEGABYTE), peer, tag=tag) for tag in range(3)]
        for work in works:
            assert work is not None
            work.wait()
        return since(start)

    assert run(program) == [3 * 1.0 + 1.0] * 2


def test_a_program_that_polls_sees_it_complete_in_time() -> None:
    def program() -> float:
        start = time.monotonic()
        work = dist.all_reduce(torch.ones(MEGABYTE), async_op=True)
        while not work.is_completed():
            pass
        return since(start)

    for seconds in run(program):
        assert ALL_REDUCE <= seconds <= ALL_REDUCE * 1.02


def test_a_timeout_is_shorter_than_the_operation() -> None:
    """It completes later all the same, as NCCL's would."""

    def program() -> tuple[str, float]:
        start = time.monotonic()
        work = dist.all_reduce(torch.ones(MEGABYTE), async_op=True)
        try:
            work.wait(timedelta(seconds=2))
        except RuntimeError as error:
            work.wait()
            return str(error), since(start)
        return "", 0.0

    for text, seconds in run(program):
        assert "Timed out waiting 2000ms" in text
        assert seconds == ALL_REDUCE


def test_callbacks_run_when_it_completes() -> None:
    def program() -> list[float]:
        start, seen = time.monotonic(), list[float]()
        work = dist.all_reduce(torch.ones(MEGABYTE), async_op=True)
        done = work.get_future().then(lambda future: seen.append(since(start)))
        done.wait()
        return seen

    assert run(program) == [[ALL_REDUCE]] * 2


def test_an_operation_that_nobody_waits_for_ends_with_the_run() -> None:
    def program() -> None:
        dist.all_reduce(torch.ones(MEGABYTE), async_op=True)

    with phalanx.World(
        ranks=2, clock="virtual", compute="free", network=NET, checks="none"
    ) as world:
        world.run(program)
        done = list(world.journal.filter(kind="completed"))
        posted = list(world.journal.filter(kind="posted"))
    assert done[-1].time - posted[0].time == pytest.approx(ALL_REDUCE)


def test_a_deadlock_is_still_proved() -> None:
    def program() -> None:
        dist.all_reduce(torch.ones(MEGABYTE), async_op=True).wait()  # type: ignore[union-attr]
        dist.recv(torch.ones(1), 1 - dist.get_rank())

    with pytest.raises(phalanx.DeadlockError):
        run(program)


def test_an_error_comes_at_once() -> None:
    def program() -> float:
        start = time.monotonic()
        try:
            dist.all_reduce(torch.ones(MEGABYTE + dist.get_rank()))
        except PhalanxError:
            return since(start)
        return -1.0

    assert run(program) == [0.0, 0.0]


def test_ddp_overlaps_with_what_backward_takes() -> None:
    """Two buckets: the first is reduced while the rest of backward goes on."""
    from torch.nn.parallel import DistributedDataParallel

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            time.sleep(10.0)
            return grad

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.high(Slow.apply(self.low(x)))  # type: ignore[no-any-return]

    def program() -> tuple[float, float]:
        model = DistributedDataParallel(Model(), bucket_cap_mb=1)
        model(torch.ones(1, 512)).sum().backward()
        model.zero_grad()
        start = time.monotonic()
        model(torch.ones(1, 512)).sum().backward()
        bucket = NET.collective("all_reduce", 4 * (512 * 512 + 512), (0, 1))
        return since(start), bucket

    for taken, bucket in run(program):
        assert 10.0 + bucket <= taken < 10.0 + 2 * bucket


# -- what computing takes --------------------------------------------------------------------


def compute(seconds: float) -> None:
    """By the system's clock, which ranks do not read."""
    until = monotonic() + seconds
    while monotonic() < until:
        pass


def time_of_computing() -> float:
    start = time.monotonic()
    if dist.get_rank() == 0:
        compute(0.01)
    dist.barrier()
    return time.monotonic() - start


def test_computing_takes_no_time_if_it_is_free() -> None:
    assert run(time_of_computing, network=None) == [0.0, 0.0]


def test_computing_takes_so_many_times_as_long_and_others_wait_for_it() -> None:
    found = run(time_of_computing, network=None, compute=1000.0)
    assert min(found) >= 10.0


def test_computing_is_free_in_an_exploration() -> None:
    def program() -> None:
        assert time_of_computing() == 0.0

    assert phalanx.explore(program, ranks=2, schedules=20, store=None).failures == ()
