"""What the order benchmark has shown to be wrong in the explorer, as small as it can be."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import phalanx
from phalanx.core.choices import Step
from phalanx.core.step_choice import _can_make
from phalanx.explore.drawn_plans import PassedLines
from phalanx.faults import line, raise_


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def explored(program: Any, **given: Any) -> Any:
    given = {"ranks": 2, "compare": "none", **given}
    return phalanx.explore(program, store=None, raises=False, **given)


def test_a_step_that_can_no_longer_be_asked_about_is_made() -> None:
    def ask() -> bool:
        raise dist.DistNetworkError("the server is gone")

    step = Step("store.get", "key", writes=False, is_possible=ask)
    assert _can_make(step)
    assert step.is_possible is None  # its own call says what is wrong


def saves_what_changes() -> None:
    """Rank 0's thread reads a list that its main thread changes."""
    if dist.get_rank():
        return
    state, saved = [1], []

    def save() -> None:
        store().set("begun", "1")
        saved.append(state[0])

    thread = threading.Thread(target=save)
    thread.start()
    store().set("going on", "1")
    state[0] = 2
    thread.join()
    assert saved == [1], f"saved {saved}"


def test_threads_that_share_memory_are_told_apart() -> None:
    found = explored(saves_what_changes, strategy="exhaustive")
    assert found.complete
    assert found.behaviours == 2
    assert [each.behaviours for each in found.failures] == [1]


def takes_a_lock_that_is_free() -> None:
    """Who finds the lock free asks for it with another expectation, and no time passes."""
    expected = ""
    while True:
        now = store().compare_set("lock", expected, f"rank {dist.get_rank()}").decode()
        if now == f"rank {dist.get_rank()}":
            break
        expected = now if now == "free" else ""
        if now != "free":
            time.sleep(100)
    store().set("lock", "free")


def test_who_asks_for_something_else_need_not_wait_for_news() -> None:
    found = explored(takes_a_lock_that_is_free, schedules=60, faults="delay", strategy="random")
    assert found.passed, found.render()


def sends_again() -> None:
    """Rank 0 may be delayed while what it waits for comes."""
    if dist.get_rank() == 0:
        store().wait(["request"], timedelta(seconds=0.05))
        time.sleep(0.01)
        store().wait(["request"], timedelta(seconds=0.05))
    else:
        store().set("request", "1")
        time.sleep(0.2)


def test_a_delayed_rank_does_not_hold_the_clock_where_its_wait_would_have_ended() -> None:
    found = explored(sends_again, schedules=60, faults="delay")
    assert found.schedules == 60


def measures(given: float) -> bool:
    return time.monotonic() - given > 10


def test_faults_are_drawn_at_lines_of_functions_without_calls() -> None:
    passed = PassedLines()

    def program() -> None:
        measures(time.monotonic())
        dist.barrier()

    with passed.watching():
        phalanx.run(program, ranks=2)
    place = f"{Path(__file__).name}:{measures.__code__.co_firstlineno + 1}"
    assert any(each.endswith(place) for each in passed.of(1))


def saves() -> None:
    for step in range(3):
        store().set(f"{dist.get_rank()}", str(step))


@pytest.mark.parametrize("n", [3, 4])
def test_a_line_is_drawn_at_as_many_passes_as_there_are(n: int) -> None:
    passed = PassedLines()
    with passed.watching():
        phalanx.run(saves, ranks=2)
    place = f"{Path(__file__).name}:{saves.__code__.co_firstlineno + 2}"
    (times,) = (times for each, times in passed.of(1).items() if each.endswith(place))
    assert times == 3
    plan = [raise_("ValueError", rank=1, at=line(place, n))]
    try:
        phalanx.run(saves, ranks=2, faults=plan)
    except phalanx.RankFailedError:
        assert n == 3
    else:
        assert n == 4


def fails_second() -> None:
    if store().add("come", 1) == 1 and dist.get_rank() == 1:
        raise ValueError("rank 1 is first")


def test_a_failure_says_in_which_schedule_it_came_first() -> None:
    found = explored(fails_second, schedules=30, strategy="pct")
    (failure,) = found.failures
    again = explored(fails_second, schedules=failure.first, strategy="pct")
    assert again.failures
    if failure.first > 1:
        before = explored(fails_second, schedules=failure.first - 1, strategy="pct")
        assert before.passed


def last_value() -> str:
    store().set("value", str(dist.get_rank()))
    dist.barrier()
    return str(store().get("value").decode())


def test_different_results_say_in_which_schedule_they_came_first() -> None:
    found = explored(last_value, schedules=30, compare="values")
    (failure,) = found.failures
    assert failure.kind == "different-results"
    assert 1 <= failure.first <= 30
    assert failure.schedules <= 31 - failure.first
