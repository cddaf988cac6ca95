"""The fast path that ranks of one machine share, in one process and on real ranks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.engines.remote import shared_memory_path
from phalanx.engines.remote.shared_memory_path import PATIENCE, ROWS, FastPath, Row, digest_of

pytestmark = pytest.mark.skipif(not shared_memory_path.is_available(), reason="needs Linux")


@pytest.fixture
def rows():
    fd = shared_memory_path.make(2)
    views = [FastPath(os.dup(fd), 2) for _ in range(2)]
    yield [view.row("a group", member, 2) for member, view in enumerate(views)]
    os.close(fd)


@pytest.fixture
def patient(monkeypatch):
    """Who waits on the fast path does so for long enough to be noticed."""
    monkeypatch.setattr(shared_memory_path, "PATIENCE", LONG)


LONG = 5.0


def meet_later(row: Row, digest: int) -> tuple[threading.Thread, list[bool]]:
    """Another rank, which waits on the fast path until something happens."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(row.meet(digest)))
    thread.start()
    time.sleep(0.05)
    return thread, found


def test_who_comes_last_wakes_the_other(rows, patient) -> None:
    for _ in range(3):
        start = time.monotonic()
        thread, found = meet_later(rows[0], 77)
        assert rows[1].meet(77)
        thread.join()
        assert found == [True] and time.monotonic() - start < LONG


def test_who_waits_too_long_goes_to_the_desk_and_so_does_who_comes_then(
    rows, monkeypatch
) -> None:
    start = time.monotonic()
    assert not rows[0].meet(77)
    assert time.monotonic() - start >= PATIENCE
    monkeypatch.setattr(shared_memory_path, "PATIENCE", LONG)
    assert not rows[1].meet(77)
    assert time.monotonic() - start < LONG


@pytest.mark.parametrize("how", ["another signature", "at the referee", "never here", "ahead"])
def test_a_call_that_will_not_be_met_here_goes_to_the_desk_at_once(
    rows, how, monkeypatch
) -> None:
    if how == "another signature":
        rows[0].meet(78)
    elif how == "never here":
        rows[0].close()
    else:
        rows[0].pass_by()
    if how == "ahead":
        rows[0].pass_by()
    monkeypatch.setattr(shared_memory_path, "PATIENCE", LONG)
    start = time.monotonic()
    assert not rows[1].meet(77)
    assert time.monotonic() - start < LONG


def test_a_rank_that_never_meets_here_again(rows, patient) -> None:
    rows[0].close()
    start = time.monotonic()
    assert not rows[0].meet(77)
    assert not rows[1].meet(77)
    assert time.monotonic() - start < LONG


def test_who_waits_is_woken_when_the_other_goes_to_the_desk(rows, patient) -> None:
    start = time.monotonic()
    thread, found = meet_later(rows[0], 77)
    rows[1].pass_by()
    thread.join()
    assert found == [False] and time.monotonic() - start < LONG


def test_a_full_board() -> None:
    fd = shared_memory_path.make(2)
    view = FastPath(fd, 2)
    assert all(view.row(f"group {each}", 0, 2) is not None for each in range(ROWS))
    assert view.row("one more", 0, 2) is None
    assert view.row("group 3", 1, 2) is not None
    shared_memory_path.clear(fd, 2)
    assert view.row("one more", 0, 2) is not None
    os.close(fd)


SEVERAL_THREADS = """
import os, sys, threading, time
from phalanx.engines.remote.shared_memory_path import FastPath, make

fd = make(2)
pid = os.fork()
fast_path = FastPath(fd, 2)
rows = [fast_path.row(key, 0 if pid else 1, 2) for key in "ab"]
end = time.monotonic() + 2
failed = []

def work(row):
    try:
        while time.monotonic() < end:
            row.pass_by()
    except OSError as error:
        failed.append(error)

threads = [threading.Thread(target=work, args=[row]) for row in rows]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if not pid:
    os._exit(len(failed))
print(failed, os.waitpid(pid, 0)[1])
"""


@pytest.mark.programs
def test_threads_of_two_ranks_on_two_rows() -> None:
    command = [sys.executable, "-c", SEVERAL_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "[] 0\n", done.stderr


def test_what_a_dead_rank_could_not_tell() -> None:
    fd = shared_memory_path.make(2)
    view = FastPath(fd, 2)
    for at in range(shared_memory_path.MOST_PAST):
        view.note_past(0, at, (1, at, 7 + at, 0.5 * at))
    view.note_past(0, shared_memory_path.MOST_PAST, (1, 2, 5, 0.0))
    assert shared_memory_path.past_of(fd, 2, 0) == [
        (1, at, 7 + at, 0.5 * at) for at in range(shared_memory_path.MOST_PAST)
    ]
    assert shared_memory_path.past_of(fd, 2, 1) == []
    view.forget_past(0)
    view.note_past(0, 0, (0, 1, 9, 2.5))
    assert shared_memory_path.past_of(fd, 2, 0) == [(0, 1, 9, 2.5)]
    shared_memory_path.clear(fd, 2)
    assert shared_memory_path.past_of(fd, 2, 0) == []
    os.close(fd)


def test_signatures_have_one_digest_each() -> None:
    assert digest_of(("all_reduce", None, 4)) == digest_of(("all_reduce", None, 4))
    assert digest_of(("all_reduce", None, 4)) != digest_of(("all_reduce", None, 5))


# -- on ranks -----------------------------------------------------------------------------


def mix(seed: int) -> float:
    """Calls of all kinds on several groups, with ranks that are late now and then."""
    common, own = random.Random(seed), random.Random(seed * 10 + dist.get_rank())
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = dist.new_group(range(size))
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    total = 0.0
    for _ in range(120):
        if own.random() < 0.08:
            time.sleep(own.uniform(0, 3 * PATIENCE))
        kind, count = common.randrange(7), common.randint(1, 3)
        tensor = torch.ones(count)
        if kind <= 1:
            dist.all_reduce(tensor)
        elif kind == 2:
            dist.all_reduce(tensor, group=halves[rank // 2])
        elif kind == 3:
            dist.all_reduce(tensor, async_op=True).wait()
        elif kind == 4:
            dist.barrier()
        elif kind == 5:
            ring = [(rank + 1) % size, (rank - 1) % size]
            steps = [(dist.send, ring[0]), (dist.recv, ring[1])]
            for step, peer in steps if rank % 2 else steps[::-1]:
                step(tensor, peer, group=pairs)
        else:
            other = torch.zeros(count)
            works = [dist.isend(tensor * rank, (rank + 1) % size)]
            works.append(dist.irecv(other, (rank - 1) % size))
            for work in works:
                work.wait()
            tensor = other
        total += float(tensor.sum())
    return total


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.programs
def test_calls_of_all_kinds_by_ranks_that_are_late_at_times(seed) -> None:
    options: dict[str, Any] = {"ranks": 4, "backend": "gloo", "timeout": 40.0}
    expected = phalanx.run(mix, seed, clock="virtual", **options)
    assert phalanx.run(mix, seed, engine="processes", **options) == expected
