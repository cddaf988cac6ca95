"""Equal choices must give equal runs. What else decides is found, with its source."""

from __future__ import annotations

import datetime
import itertools
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

import phalanx

left_behind: list[int] = []


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def explore(program: Callable[[], Any], **given: Any) -> Any:
    given = {"ranks": 2, "schedules": 60, "strategy": "random", **given}
    return phalanx.explore(program, raises=False, store=None, **given)


def use(number: int) -> None:
    store().add(f"key {number}", 1)
    dist.barrier()


def asks_the_system() -> None:
    use(os.urandom(8)[0])


def asks_for_a_name() -> None:
    use(uuid.uuid4().int)


def asks_a_generator() -> None:
    use(random.SystemRandom().getrandbits(40))


def asks_for_an_address() -> None:
    use(hash((id(object()), time.thread_time_ns())))


def asks_the_clock() -> None:
    use(time.time_ns())


def asks_for_the_processor() -> None:
    use(time.thread_time_ns())


def starts_from_anything() -> None:
    generator = random.Random()
    generator.seed()
    use(generator.getrandbits(40))


@pytest.mark.parametrize(
    ("program", "source"),
    [
        (asks_the_system, "os.urandom"),
        (asks_for_a_name, "os.urandom"),
        (asks_a_generator, "os.urandom"),
        (asks_for_an_address, "id"),
        (asks_the_clock, "time.time_ns"),
        (asks_for_the_processor, "time.thread_time_ns"),
        (starts_from_anything, "random.seed"),
    ],
)
def test_the_source_is_named(program: Callable[[], None], source: str) -> None:
    found = explore(program, clock="real" if program is asks_the_clock else "virtual")
    assert found.passed and not found.complete
    (note,) = found.notes
    assert note.startswith("the same order gave another run at ")
    line = program.__code__.co_firstlineno + 1
    assert f"{source} is called at " in note
    assert any(f"test_uncontrolled_chance.py:{number}" in note for number in (line, line + 1))


def test_it_says_what_was_expected_and_what_came() -> None:
    numbers = itertools.count()

    def program() -> None:
        if dist.get_rank() == 0 and next(numbers) % 2:
            store().add("odd", 1)
        else:
            store().add("even", 1)

    for _ in range(5):
        (note,) = explore(program).notes
        expected, came = (line for line in note.splitlines() if line[2:10].strip() in _TOLD)
        assert ("odd" in expected) != ("odd" in came)
        assert ("even" in expected) != ("even" in came)


_TOLD = ("expected", "came")


def test_a_failure_by_chance_is_told_as_that() -> None:
    rolled = iter([True] + [False] * 10_000)

    def program() -> None:
        if store().add("n", 1) == 1 and dist.get_rank() == 1 and next(rolled):
            raise ValueError("once")

    (failure,) = explore(program).failures
    assert failure.kind == "uncontrolled-chance"
    assert isinstance(failure.error, phalanx.UncontrolledChanceError)
    assert "the run failed before: rank 1 raised ValueError: once" in failure.story


def test_only_what_depends_on_chance_is_left_out() -> None:
    def program() -> int:
        print(time.time_ns())
        return int(store().add("n", 1))

    found = explore(program, clock="real")
    assert [each.kind for each in found.failures] == ["different-results"]
    assert "rank 0 returned 1 in one order and 2 in another" in found.failures[0].title
    (note,) = found.notes
    assert note.startswith("the same order gave another result: output of orders are not")
    assert "time.time_ns is called at " in note


def test_what_a_run_leaves_behind_is_named() -> None:
    left_behind.clear()

    def program() -> None:
        left_behind.append(1)
        use(len(left_behind))

    (note,) = explore(program).notes
    assert 'the global "left_behind"' in note


def test_a_virtual_clock_shows_the_same_time_in_each_run() -> None:
    def program() -> str:
        began = time.time()
        sum(range(10_000))
        time.sleep(10)
        use(int(time.time()) + time.monotonic_ns() + time.perf_counter_ns())
        print(datetime.datetime.now(datetime.timezone.utc), began)
        return str(time.time() - began)

    found = explore(program)
    assert (found.passed, found.notes) == (True, ())


def test_a_steady_program_has_no_note() -> None:
    def program() -> None:
        random.random()
        use(3)

    found = explore(program)
    assert (found.passed, found.notes) == (True, ())


def test_no_profiler_and_no_thread_stays_behind() -> None:
    before = threading.active_count()
    explore(asks_the_system)
    assert threading.getprofile() is None
    assert sys.getprofile() is None
    assert threading.active_count() <= before


def test_a_profiler_of_the_user_stays() -> None:
    def profiler(*about: object) -> None: ...

    threading.setprofile(profiler)
    try:
        explore(asks_the_system)
        assert threading.getprofile() is profiler
    finally:
        threading.setprofile(None)
