"""Nothing of a killed rank's program runs any more, and nothing is left of it."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

import phalanx
from phalanx.faults import call, kill, moment

log: list[str] = []


@pytest.fixture(autouse=True)
def empty_log() -> None:
    log.clear()


def run_killed(fn: Any, at: Any = None, **more: Any) -> Any:
    return phalanx.run(fn, ranks=1, faults=kill(rank=0, at=at or call(1)), **more)


@contextlib.contextmanager
def cleaning() -> Iterator[None]:
    try:
        yield
    except BaseException:
        log.append("except of a generator")
    finally:
        log.append("finally of a generator")


class Swallowing:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> bool:
        log.append("__exit__")
        return True


def items() -> Iterator[int]:
    try:
        yield from range(3)
    finally:
        log.append("generator")


def in_except() -> None:
    try:
        dist.barrier()
    except BaseException:
        log.append("except")


def in_finally() -> None:
    try:
        try:
            dist.barrier()
        finally:
            log.append("inner")
    finally:
        log.append("outer")


def in_with() -> None:
    with Swallowing(), cleaning():
        dist.barrier()
    log.append("behind")


def in_nested_handlers() -> None:
    while True:
        try:
            try:
                with cleaning():
                    for _ in items():
                        [dist.barrier() for _ in range(2)]
            except BaseException:
                log.append("except")
            finally:
                log.append("finally")
        finally:
            log.append("outer")


def in_a_library() -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, "callback")
        stack.enter_context(cleaning())
        sorted([2, 1], key=lambda each: dist.barrier())


def with_exit_functions() -> None:
    atexit.register(log.append, "atexit")
    dist.barrier()


def with_a_pool() -> None:
    def job() -> None:
        try:
            dist.barrier()
        finally:
            log.append("job")

    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(job).result()
        finally:
            log.append("result")


@pytest.mark.parametrize(
    "program",
    [
        *(in_except, in_finally, in_with, in_nested_handlers, in_a_library),
        *(with_exit_functions, with_a_pool),
    ],
)
def test_no_handler_runs(program: Any) -> None:
    assert run_killed(program) == [None]
    assert log == []


def test_no_handler_runs_where_the_rank_waits() -> None:
    def wait() -> None:
        try:
            with cleaning():
                time.sleep(100)
        finally:
            log.append("finally")

    assert run_killed(wait, moment(10), clock="virtual") == [None]
    assert log == []


def test_its_threads_end_with_it() -> None:
    running = threading.Event()

    def loop() -> None:
        try:
            while True:
                running.set()
                time.sleep(0.001)
        finally:
            log.append("thread")

    def start() -> int:
        if dist.get_rank() == 0:
            threading.Thread(target=loop, daemon=True).start()
            running.wait()
            try:
                dist.barrier()
            finally:
                log.append("rank")
        else:
            with contextlib.suppress(RuntimeError):
                dist.barrier()
        return 1

    assert phalanx.run(start, ranks=2, faults=kill(rank=0, at=call(1))) == [None, 1]
    assert log == []
    assert gc.isenabled()


def test_nothing_is_left_behind() -> None:
    threads, tracing = threading.active_count(), (sys.gettrace(), sys.getprofile())
    for program in (in_finally, in_with, in_nested_handlers):
        run_killed(program)
    assert threading.active_count() == threads
    assert gc.isenabled()
    assert (sys.gettrace(), sys.getprofile()) == tracing
    seen = phalanx.run(lambda: (sys.gettrace(), sys.getprofile()), ranks=1)
    assert seen == [(None, None)] or seen == [(tracing[0], tracing[1])]


def test_a_file_stays_as_it_was(tmp_path: Any) -> None:
    path = tmp_path / "checkpoint"

    def save() -> None:
        with path.open("w") as file:
            file.write("first half ")
            dist.barrier()
            file.write("second half")

    run_killed(save)
    assert path.read_text() == "first half "
