"""What ranks read from clocks while sleeps take no time, and threads in native code beside."""

from __future__ import annotations

import datetime
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.emulation.patch_installer import read
from phalanx.emulation.stdlib.listening_threads import _leads_to_torch

READERS: dict[str, Callable[[], float]] = {
    "time": lambda: time.time(),
    "time_ns": lambda: time.time_ns() / 1e9,
    "monotonic": lambda: time.monotonic(),
    "monotonic_ns": lambda: time.monotonic_ns() / 1e9,
    "perf_counter": lambda: time.perf_counter(),
    "perf_counter_ns": lambda: time.perf_counter_ns() / 1e9,
    "now": lambda: datetime.datetime.now().timestamp(),
    "now(tz)": lambda: datetime.datetime.now(datetime.timezone.utc).timestamp(),
    "utcnow": lambda: datetime.datetime.utcnow().timestamp(),
    "today": lambda: datetime.datetime.today().timestamp(),
}
LONG = 3600.0


@pytest.mark.filterwarnings("ignore:.*utcnow:DeprecationWarning")
@pytest.mark.parametrize("name", READERS)
def test_every_clock_agrees_with_virtual_sleeps(name: str) -> None:
    reader = READERS[name]

    def program() -> float:
        before = reader()
        time.sleep(LONG * (1 + dist.get_rank()))
        return reader() - before

    assert phalanx.run(program, ranks=2, clock="virtual") == [
        pytest.approx(LONG, abs=60),
        pytest.approx(2 * LONG, abs=60),
    ]


def test_no_less_than_what_was_slept_has_passed() -> None:
    def program() -> bool:
        before = time.monotonic_ns(), time.perf_counter_ns()
        time.sleep(0.1)
        return all(
            after - first >= 10**8
            for first, after in zip(
                before, (time.monotonic_ns(), time.perf_counter_ns()), strict=True
            )
        )

    assert all(phalanx.run(program, ranks=2, clock="virtual"))


def test_a_thread_of_a_rank_reads_the_ranks_clock() -> None:
    def program() -> float:
        before, read_there = time.time(), list[float]()
        time.sleep(LONG)
        thread = threading.Thread(target=lambda: read_there.append(time.time()))
        thread.start()
        thread.join()
        return read_there[0] - before

    assert phalanx.run(program, ranks=1, clock="virtual") == [pytest.approx(LONG, abs=60)]


def test_time_does_not_go_back_in_the_next_run_of_a_world() -> None:
    def program() -> float:
        time.sleep(LONG)
        return time.monotonic()

    with phalanx.World(ranks=1, clock="virtual") as world:
        assert world.run(program)[0] < world.run(lambda: time.monotonic())[0]


def test_a_loop_that_polls_the_time_ends() -> None:
    def program() -> None:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass

    phalanx.run(program, ranks=2, clock="virtual")


def test_everybody_else_reads_the_systems_clock() -> None:
    names = [(time, "time"), (time, "monotonic"), (datetime.datetime, "now")]
    before = [read(*name) for name in names]
    seen: list[float] = []
    go, done = threading.Event(), threading.Event()

    def look() -> None:
        go.wait()
        seen.append(time.time())
        done.set()

    outsider = threading.Thread(target=look)
    outsider.start()
    began = time.time()

    def program() -> None:
        time.sleep(LONG)
        go.set()
        done.wait()

    phalanx.run(program, ranks=1, clock="virtual")
    outsider.join()
    assert seen[0] - began < LONG
    assert [read(*name) for name in names] == before


def test_a_real_clock_leaves_the_names_alone() -> None:
    before = time.time, read(datetime.datetime, "now")
    assert phalanx.run(lambda: (time.time, read(datetime.datetime, "now")) == before, ranks=1)


class Later(datetime.datetime):
    """A subclass, as libraries for dates have them."""


def test_subclasses_and_names_that_were_imported_before() -> None:
    from datetime import datetime as early

    def program() -> tuple[type, float]:
        before = early.now()
        time.sleep(LONG)
        return type(Later.now()), (early.now() - before).total_seconds()

    kind, passed = phalanx.run(program, ranks=1, clock="virtual")[0]
    assert (kind, passed) == (Later, pytest.approx(LONG, abs=60))


# -- threads in native code -----------------------------------------------------------------


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def start(function: Callable[[], Any], name: str = "server") -> None:
    threading.Thread(target=function, name=name, daemon=True).start()


def test_a_thread_that_serves_does_not_stop_the_clock(listening: socket.socket) -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            start(listening.accept)
        time.sleep(LONG)
        dist.barrier()
        time.sleep(LONG)

    phalanx.run(program, ranks=2, clock="virtual")


def test_a_thread_that_is_left_there_does_not_hold_up_what_is_traced(
    listening: socket.socket,
) -> None:
    """As a debugger, a profiler or coverage does."""
    phalanx.run(lambda: start(listening.accept), ranks=1)
    entered = threading.Event()
    threading.setprofile(lambda *event: None)
    try:
        traced = threading.Thread(target=entered.set, daemon=True)
        traced.start()
    finally:
        threading.setprofile(None)
    assert entered.wait(20)
    traced.join()


def test_beside_a_thread_in_any_other_call_time_passes_as_it_does() -> None:
    """The other end may take its time to answer, so nothing may time out meanwhile."""
    one, other = socket.socketpair()

    def program() -> float:
        start(lambda: one.recv(1))
        before = time.perf_counter()
        time.sleep(0.2)
        return time.perf_counter() - before

    began = time.perf_counter()
    with one, other:
        assert phalanx.run(program, ranks=1, clock="virtual")[0] >= 0.2
        assert time.perf_counter() - began >= 0.2
        other.send(b"x")


def test_a_timeout_fires_beside_a_thread_that_serves(listening: socket.socket) -> None:
    one, other = socket.socketpair()

    def program() -> None:
        start(listening.accept)
        if dist.get_rank() == 0:
            time.sleep(600.0)  # less than the timeout of the group
            start(lambda: one.recv(1))
        dist.recv(torch.ones(1), 1 - dist.get_rank())

    with one, other, pytest.raises(phalanx.StallError, match="no rank moved for 1 s"):
        phalanx.run(program, ranks=2, clock="virtual", timeout=1)


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_a_deadlock_beside_a_thread_that_serves(listening: socket.socket, clock: str) -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            start(listening.accept)
        dist.recv(torch.ones(1), 1 - dist.get_rank())

    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(program, ranks=2, clock=clock)
    words = " ".join(str(caught.value).split())
    assert "beside thread server of rank 0 waits in accept() for a connection" in words


@pytest.mark.slow  # for longer than it takes to say so
def test_no_deadlock_if_the_thread_could_free_a_rank(listening: socket.socket) -> None:
    """Its function is of this module, which knows torch."""

    def serve() -> None:
        listening.accept()[0].close()
        dist.send(torch.ones(1), 1, group=pairs[0])

    pairs: dict[int, Any] = {}
    connected = threading.Event()

    def program() -> None:
        me = dist.get_rank()
        pairs[me] = dist.new_group([0, 1])
        if me == 0:
            start(serve)
            threading.Timer(1.5, connected.set).start()
            dist.barrier()
        else:
            dist.recv(torch.ones(1), 0, group=pairs[me])
            dist.barrier()

    def client() -> None:
        connected.wait()
        socket.create_connection(listening.getsockname()).close()

    outside = threading.Thread(target=client)
    outside.start()
    phalanx.run(program, ranks=2)
    outside.join()


@pytest.mark.parametrize(
    ("home", "leads"),
    [
        ({"__name__": "a", "json": types.ModuleType("json")}, False),
        ({"__name__": "a", "torch": torch}, True),
        ({"__name__": "a", "ones": torch.nn.Linear}, True),
        ({"__name__": "a", "program": test_a_real_clock_leaves_the_names_alone}, True),
        ({"__name__": "__main__"}, True),
        ({"__name__": "a", "pytest": pytest}, False),
        ({"__name__": "a", "lazy": type("Lazy", (types.ModuleType,), {})("lazy")}, True),
    ],
)
def test_whether_a_module_leads_to_torch(home: dict[str, Any], leads: bool) -> None:
    assert _leads_to_torch(home) is leads
