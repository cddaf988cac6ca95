"""Each kind of fault at each kind of point: what the injured rank meets with."""

from __future__ import annotations

import gc
import inspect
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.faults import (
    call,
    corrupt,
    delay,
    drop_store,
    kill,
    line,
    moment,
    partition,
    raise_,
    stop,
    store,
)


def own_store() -> Any:
    return dist.distributed_c10d._get_default_store()


def work(log: list[Any]) -> str:
    """Two operations on the store, two calls, a sleep of 100 s."""
    rank = dist.get_rank()
    try:
        own_store().set(f"first {rank}", "1")
        dist.barrier()
        own_store().set(f"second {rank}", "1")  # MARK
        time.sleep(100)
        log.append((rank, "worked", round(time.monotonic())))
    except MemoryError:
        log.append((rank, "caught", round(time.monotonic())))
    finally:
        log.append((rank, "left"))
    return "returned"


def line_of_mark() -> str:
    lines, first = inspect.getsourcelines(work)
    place = first + next(at for at, text in enumerate(lines) if "# MARK" in text)
    return f"{__file__}:{place}"


POINTS = {
    "call": call(1),
    "store": store(2),
    "line": line(line_of_mark()),
    "moment": moment(30),
}


def run(fault: Any, ranks: int = 2, fn: Any = work, **more: Any) -> tuple[Any, list[Any]]:
    log: list[Any] = []
    more = {"clock": "virtual", "compute": "free", **more}
    return phalanx.run(fn, log, ranks=ranks, faults=fault, **more), log


def began() -> float:
    """What the program's clock shows when a run begins."""
    return phalanx.run(time.monotonic, ranks=1, clock="virtual", compute="free")[0]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_rank_does_no_more(point: str) -> None:
    def survive(log: list[Any]) -> Any:
        try:
            return work(log)
        except RuntimeError as error:  # the barrier, where rank 1 is killed before
            return str(error)

    values, log = run(kill(rank=1, at=POINTS[point]), fn=survive)
    assert values[1] is None
    assert [each for each in log if each[0] == 1] == []
    before = "Connection closed by peer (rank 1 was killed)"
    assert values[0] == (before if point == "call" else "returned")


@pytest.mark.parametrize("point", POINTS)
def test_an_error_is_raised_there(point: str) -> None:
    if point == "call":
        error = "Connection closed|Timed out|did not|waits? for"
        with pytest.raises(phalanx.PhalanxError, match=error):
            run(raise_(MemoryError, rank=1, at=POINTS[point]))
        return
    values, log = run(raise_(MemoryError, rank=1, at=POINTS[point]))
    assert values == ["returned"] * 2
    ends = {each[0]: each[1] for each in log if len(each) == 3}
    assert ends == {0: "worked", 1: "caught"}


@pytest.mark.parametrize("kind", [delay, stop])
@pytest.mark.parametrize("point", POINTS)
def test_a_rank_comes_later(point: str, kind: Any) -> None:
    values, log = run(kind(rank=1, seconds=500, at=POINTS[point]))
    assert values == ["returned"] * 2
    times = {each[0]: each[2] for each in log if len(each) == 3}
    together = point == "call"  # the barrier is later for both
    late = 500 + 30 if point == "moment" else 500 + 100
    assert times[1] - times[0] == (0 if together else late - 100)


def test_what_comes_meanwhile_is_seen_after_a_stop() -> None:
    def receive(log: list[Any]) -> None:
        tensor = torch.zeros(1)
        if dist.get_rank() == 0:
            time.sleep(20)
            dist.send(tensor + 7, 1)
        else:
            dist.recv(tensor, 0)
            log.append((tensor.item(), round(time.monotonic() - start)))

    start = began()
    _, log = run(stop(rank=1, seconds=100, at=moment(10)), fn=receive)
    ((value, seconds),) = log
    assert value == 7.0
    assert abs(seconds - 110) <= 2


def test_a_timer_runs_out_while_its_rank_is_stopped() -> None:
    def wait(log: list[Any]) -> None:
        if dist.get_rank() == 1:
            event = threading.Event()
            before = time.monotonic()
            log.append((event.wait(20), round(time.monotonic() - before)))

    _, log = run(stop(rank=1, seconds=100, at=call(1)), fn=partial(_after_barrier, wait))
    assert log == [(False, 20)]


def _after_barrier(fn: Any, log: list[Any]) -> None:
    dist.barrier()
    fn(log)


def test_a_thread_that_a_rank_started_meets_faults_too() -> None:
    def work(log: list[Any]) -> None:
        began = time.monotonic()
        if dist.get_rank() == 1:
            group = dist.group.WORLD
            thread = threading.Thread(target=lambda: dist.barrier(group))
            thread.start()
            thread.join()
        else:
            dist.barrier()
        log.append(time.monotonic() - began)

    _, log = run(stop(rank=1, seconds=0.2, at=call(1)), fn=work, clock="real", compute="real")
    assert min(log) >= 0.2


def test_moments_of_a_real_clock_strike_a_rank_that_computes() -> None:
    def compute(log: list[Any]) -> None:
        until = time.monotonic() + 30
        while dist.get_rank() == 1 and time.monotonic() < until:
            pass
        log.append(dist.get_rank())

    values, log = run(kill(rank=1, at=moment(0.05)), fn=compute, clock="real", compute="real")
    assert values == [None, None]
    assert log == [0]


def test_a_partition_keeps_messages_back_until_it_is_over() -> None:
    def talk(log: list[Any]) -> None:
        time.sleep(10)
        dist.barrier()
        log.append(round(time.monotonic() - start))

    start = began()
    _, log = run(partition([0], [1], during=(5, 50)), fn=talk)
    assert all(abs(each - 50) <= 2 for each in log)


def test_a_store_without_a_server_refuses() -> None:
    def write(log: list[Any]) -> None:
        try:
            own_store().set("key", "1")  # the first goes into the void, as TCP has it
            own_store().add("count", 1)
        except dist.DistError as error:
            log.append((dist.get_rank(), type(error).__name__))

    _, log = run(drop_store(rank=1, at=store(1)), fn=write)
    assert (1, "DistNetworkError") in log


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_store_is_lost_before_the_operation_that_the_plan_names(number: int) -> None:
    def use(log: list[Any]) -> None:
        uses = own_store()
        operations: list[Callable[[], Any]] = [
            lambda: uses.add("count", 1),
            lambda: uses.check(["count"]),
            lambda: uses.get("count"),
            lambda: uses.compare_set("key", "", "1"),
        ]
        for place, operation in enumerate(operations, start=1):
            try:
                operation()
            except dist.DistNetworkError:
                log.append(place)

    _, log = run(drop_store(rank=0, at=store(number)), ranks=1, fn=use)
    assert log == list(range(number, 5))


def test_bits_of_a_result_flip() -> None:
    def reduce(log: list[Any]) -> float:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    (right, wrong), _ = run(corrupt(rank=1, call=1, bits=1), fn=reduce)
    assert right == 2.0
    assert wrong != 2.0


def test_a_line_counts_how_often_a_rank_comes_there() -> None:
    def loop(log: list[Any]) -> None:
        for turn in range(4):
            try:
                if dist.get_rank() == 1:
                    log.append(turn)  # TURN
            except MemoryError:
                log.append("raised")

    lines, first = inspect.getsourcelines(loop)
    at = first + next(n for n, text in enumerate(lines) if "# TURN" in text)
    plan = [raise_(MemoryError, rank=1, at=line(f"{__file__}:{at}", n)) for n in (2, 3)]
    _, log = run(plan, fn=loop)
    assert log == [0, "raised", "raised", 3]


def test_moment_nought_is_before_the_program() -> None:
    values, log = run(kill(rank=1, at=moment(0)), fn=_note_rank)
    assert (values, log) == ([0, None], [0])


def _note_rank(log: list[Any]) -> int:
    log.append(dist.get_rank())
    return dist.get_rank()


def test_a_moment_after_the_end_never_comes() -> None:
    values, _ = run(kill(rank=1, at=moment(1e6)), fn=_note_rank)
    assert values == [0, 1]


# -- what the run makes of it ---------------------------------------------------------------


def test_a_kill_is_named_as_the_cause_of_a_failure() -> None:
    with pytest.raises(phalanx.RankFailedError) as caught:
        run(kill(rank=2, at=call(1)), ranks=3)
    first, _, second = str(caught.value).splitlines()[:3]
    assert "Connection closed by peer (rank 2 was killed)" in first
    assert second.startswith("  fault     rank 2 was killed at its call 1,")


def test_who_ends_after_a_loss_lets_others_go() -> None:
    """Rank 0 is no neighbour of the rank that is killed: it fails when its own ones have ended,
    and waits for no timeout."""

    def reduce(log: list[Any]) -> None:
        try:
            dist.all_reduce(torch.ones(4))
        except RuntimeError as error:
            log.append((dist.get_rank(), str(error), time.monotonic()))

    log: list[Any] = []
    began = time.monotonic()
    phalanx.run(reduce, log, ranks=4, clock="virtual", faults=kill(rank=2, at=call(1)))
    told = {rank: text for rank, text, _ in log}
    assert told.keys() == {0, 1, 3}
    assert re.fullmatch(r"Connection closed by peer \(rank [13] has ended\)", told[0])
    assert max(at for _, _, at in log) - began < 1800.0


def test_a_deadlock_beside_a_killed_rank_says_so() -> None:
    def wait(log: list[Any]) -> None:
        if dist.get_rank() == 1:
            dist.barrier()
        own_store().wait(["never"])

    with pytest.raises((phalanx.DeadlockError, phalanx.RankFailedError)) as caught:
        run(kill(rank=1, at=call(1)), fn=wait)
    assert "rank 1 was killed at its call 1" in str(caught.value)


def test_what_a_killed_rank_left_undone_is_no_finding() -> None:
    def send(log: list[Any]) -> None:
        if dist.get_rank() == 0:
            dist.isend(torch.ones(1), 1)
        else:
            own_store().set("here", "1")
            dist.recv(torch.ones(1), 0)

    with phalanx.World(
        ranks=2, clock="virtual", strict=True, faults=kill(rank=1, at=store(1))
    ) as world:
        world.run(send, [])
        assert world.findings == ()


def test_each_run_of_a_world_has_the_whole_plan() -> None:
    with phalanx.World(ranks=2, clock="virtual", faults=kill(rank=1, at=store(1))) as world:
        for _ in range(2):
            assert world.run(_set_and_return) == [0, None]


def _set_and_return() -> int:
    own_store().set(f"key {dist.get_rank()}", "1")
    return dist.get_rank()


def test_the_journal_has_the_fault_and_the_end() -> None:
    with phalanx.World(ranks=2, clock="virtual", faults=kill(rank=1, at=store(1))) as world:
        world.run(_set_and_return)
        (struck,) = world.journal.filter(kind="fault-struck")
        ends = {each.rank: each.how for each in world.journal.filter(kind="rank-ended")}
    assert (struck.rank, struck.name, struck.shown) == (
        1,
        "kill",
        "kill(rank=1, at=store(1))",
    )
    assert "own_store().set" in struck.site.source
    assert ends == {0: "finished", 1: "killed"}


def test_the_same_plan_is_the_same_run() -> None:
    plan = [kill(rank=2, at=store(2)), stop(rank=1, seconds=40, at=moment(20))]

    def once() -> Any:
        with phalanx.World(ranks=3, clock="virtual", compute="free", faults=plan) as world:
            log: list[Any] = []
            world.run(work, log)
            return log, world.fingerprint

    (first, one), (second, other) = once(), once()
    assert one == other
    assert [each[:2] for each in first] == [each[:2] for each in second]


def note_collection(phase: str, info: dict[str, int]) -> None:
    str(phase)  # the garbage collector comes here


def collect() -> int:
    gc.callbacks.append(note_collection)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(note_collection)
    return dist.get_rank()


def test_nothing_strikes_in_what_python_calls_by_itself() -> None:
    """It does so inside our own code, too, which may hold locks there."""
    number = note_collection.__code__.co_firstlineno + 1
    plan = [kill(rank=1, at=line(f"{__file__}:{number}"))]
    assert phalanx.run(collect, ranks=2, faults=plan) == [0, 1]
