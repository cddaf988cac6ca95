"""Threads of ranks between two steps of an explored run: waited for, but not for long."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist

import phalanx
from phalanx.system import monotonic, sleep


def explored(program: Any, **given: Any) -> Any:
    given = {"ranks": 2, "compare": "none", **given}
    return phalanx.explore(program, store=None, raises=False, **given)


def test_how_long_a_thread_needs_to_its_next_step_does_not_show_on_the_clock() -> None:
    """While all ranks wait, for less than a thread may be asleep and not be left out."""
    heard: list[float] = []

    def program() -> None:
        def look() -> None:
            sleep(0.02)
            heard.append(time.monotonic() - began)

        began = time.monotonic()
        thread = threading.Thread(target=look)
        thread.start()
        time.sleep(0.1)
        thread.join()

    explored(program, schedules=3)
    assert heard and set(heard) == {0.0}


@pytest.mark.slow
def test_nor_does_it_show_how_long_a_thread_computes() -> None:
    heard: list[float] = []

    def program() -> None:
        def compute() -> None:
            until = monotonic() + 1.5
            while monotonic() < until:
                pass
            heard.append(time.monotonic() - began)

        began = time.monotonic()
        thread = threading.Thread(target=compute)
        thread.start()
        time.sleep(0.1)
        thread.join()

    explored(program, schedules=1)
    assert heard and set(heard) == {0.0}


@contextmanager
def polling_beside() -> Iterator[None]:
    """A thread of the rank polls natively, in short slices, until the block is left."""
    near, far = socket.socketpair()
    done: list[bool] = []

    def poll() -> None:
        while not done:
            select.select([near], [], [], 0.01)

    with near, far:
        thread = threading.Thread(target=poll)
        thread.start()
        yield
        done.append(True)
        thread.join()


def test_a_thread_that_polls_natively_does_not_stop_the_clock() -> None:
    def program() -> None:
        with polling_beside():
            time.sleep(0.2)

    assert explored(program, schedules=1, timeout=30).passed


def test_a_thread_that_polls_natively_keeps_no_rank_from_its_step() -> None:
    def program() -> None:
        with polling_beside():
            dist.distributed_c10d._get_default_store().add("come", 1)
            dist.barrier()

    assert explored(program, schedules=1, timeout=30).passed


def test_a_rank_that_polls_natively_lets_the_others_run() -> None:
    near, far = socket.socketpair()
    told: list[bool] = []

    def program() -> None:
        told.clear()
        dist.barrier()
        if dist.get_rank() == 0:
            while not told:
                select.select([near], [], [], 0.01)
        else:
            told.append(True)

    with near, far:
        assert explored(program, schedules=1, timeout=30).passed


@pytest.mark.parametrize("strategy", ["pct", "pos", "random", "exhaustive"])
def test_a_rank_that_makes_calls_until_its_thread_is_through_lets_it(strategy: str) -> None:
    def program() -> None:
        store = dist.distributed_c10d._get_default_store()
        done: list[bool] = []

        def save() -> None:
            store.add("saved", 1)
            done.append(True)

        thread = threading.Thread(target=save)
        thread.start()
        while not done:
            store.add("steps", 1)
        thread.join()

    assert explored(program, schedules=6, strategy=strategy, timeout=60).passed
