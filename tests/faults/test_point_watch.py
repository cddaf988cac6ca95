"""Which faults of a plan strike where, without an engine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

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
from phalanx.faults.line_tracing import LineTracing
from phalanx.faults.point_watch import Moment, PointWatch, Struck, moments_of

HERE = __file__


def test_a_fault_strikes_at_its_call_and_once() -> None:
    third = kill(rank=1, at=call(3))
    watch = PointWatch([third], 1)
    assert [watch.at_call() for _ in range(5)] == [(), (), (third,), (), ()]


def test_faults_of_one_point_strike_in_the_order_of_the_plan() -> None:
    plan = [delay(rank=0, seconds=2, at=call(1)), corrupt(rank=0, call=1)]
    plan.append(kill(rank=0, at=call(1)))
    assert PointWatch(plan, 0).at_call() == tuple(plan)


def test_faults_of_others_do_not_strike() -> None:
    plan = [kill(rank=0, at=call(1)), partition([0], [1], during=(0, 1))]
    plan += [drop_store(at=moment(0)), stop(rank=0, seconds=1, at=store(1))]
    watch = PointWatch(plan, 1)
    assert watch.at_call() == watch.at_store() == ()


def test_operations_on_stores_are_counted_apart() -> None:
    dropped, raised = drop_store(rank=0, at=store(2)), raise_(OSError, rank=0, at=call(2))
    watch = PointWatch([dropped, raised], 0)
    assert [watch.at_store(), watch.at_store()] == [(), (dropped,)]
    assert [watch.at_call(), watch.at_call()] == [(), (raised,)]


def test_calls_of_several_threads_are_one_count() -> None:
    last = kill(rank=0, at=call(4000))
    watch = PointWatch([last], 0)
    struck: list[Struck] = []

    def make_calls() -> None:
        struck.extend(watch.at_call() for _ in range(1000))

    threads = [threading.Thread(target=make_calls) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each for each in struck if each] == [(last,)]
    assert watch.at_call() == ()


def test_moments_are_in_order_and_partitions_have_two() -> None:
    cut = partition([0], [1], during=(5, 20))
    for_good = partition([0], [2], during=(1, None))
    lost, killed = drop_store(at=moment(7)), kill(rank=1, at=moment(2.5))
    plan = [cut, for_good, lost, killed, delay(rank=0, seconds=3, at=call(1))]
    assert moments_of(plan) == [
        Moment(1.0, for_good),
        Moment(2.5, killed),
        Moment(5.0, cut),
        Moment(7.0, lost),
        Moment(20.0, cut, ends=True),
    ]


def test_a_line_is_any_file_of_that_name() -> None:
    fault = kill(rank=0, at=line("jobs/train.py:7", 2))
    watch = PointWatch([fault], 0)
    assert watch.has_lines
    assert watch.lines_in("/home/somebody/jobs/train.py") and not watch.lines_in("/train.py")
    passes = [watch.at_line("/x/jobs/train.py", number) for number in (7, 8, 7, 7)]
    assert passes == [(), (), (fault,), ()]


def _loop(steps: list[str], times: int) -> None:
    for number in range(times):
        steps.append(f"before {number}")
        steps.append(f"after {number}")


SECOND = _loop.__code__.co_firstlineno + 3


def _traced(
    plan: list[object], strike: Callable[[Struck], object], body: Callable[[], object]
) -> None:
    """The body in a thread of its own, traced as rank 0."""
    watch = PointWatch(plan, 0)  # type: ignore[arg-type]

    def run() -> None:
        LineTracing(watch, strike).enter_thread()
        body()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_a_fault_at_a_line_strikes_before_the_line_is_executed() -> None:
    steps: list[str] = []
    fault = delay(rank=0, seconds=1, at=line(f"test_point_watch.py:{SECOND}", 2))
    _traced([fault], lambda struck: steps.append(str(struck[0])), lambda: _loop(steps, 3))
    assert steps[2:5] == ["before 1", str(fault), "after 1"]
    assert len(steps) == 7


def test_what_strikes_may_raise_at_the_line() -> None:
    steps: list[str] = []

    def strike(struck: Struck) -> None:
        raise struck[0].make_error()  # type: ignore[attr-defined]

    def body() -> None:
        with pytest.raises(MemoryError):
            _loop(steps, 3)

    fault = raise_(MemoryError, rank=0, at=line(f"test_point_watch.py:{SECOND}"))
    _traced([fault], strike, body)
    assert steps == ["before 0"]


def test_a_trace_function_that_was_there_goes_on() -> None:
    lines: list[int] = []
    steps: list[str] = []

    def coverage(frame: object, event: str, given: object) -> object:
        if event == "line" and frame.f_code is _loop.__code__:  # type: ignore[attr-defined]
            lines.append(frame.f_lineno)  # type: ignore[attr-defined]
        return coverage

    fault = delay(rank=0, seconds=1, at=line(f"{HERE}:{SECOND}"))
    watch = PointWatch([fault], 0)

    def run() -> None:
        sys.settrace(coverage)
        LineTracing(watch, lambda struck: steps.append("struck")).enter_thread()
        _loop(steps, 1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert SECOND in lines
    assert steps == ["before 0", "struck", "after 0"]
