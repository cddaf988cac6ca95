"""Threads that are kept from run to run: used again after a good run, and never after a bad."""

from __future__ import annotations

import contextvars
import gc
import os
import signal
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend.session import RankContext
from phalanx.backend.torch_patches import leave_groups
from phalanx.core.thread_pool import FORGETS_LOCALS, RankThreadPool
from phalanx.emulation.run_patches import patched
from phalanx.engines.rank_thread_pools import make_thread_pool
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.threads_engine import ThreadsEngine

_left = contextvars.ContextVar("_left", default="nothing")


@pytest.fixture
def thread_pool() -> Iterator[RankThreadPool]:
    before = set(threading.enumerate())
    made = make_thread_pool()
    yield made
    made.close()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("rank-")]


def run(thread_pool: RankThreadPool, body, *, ranks: int = 3, **settings) -> list:
    engine = ThreadsEngine(Settings(ranks=ranks, **settings), thread_pool=thread_pool)

    def main(context: RankContext):
        value = body()
        leave_groups(context)
        return value

    try:
        return engine.run(main)
    finally:
        engine.close()


def test_threads_are_used_again(thread_pool: RankThreadPool) -> None:
    first = run(thread_pool, threading.get_ident)
    assert run(thread_pool, threading.get_ident) == first
    assert run(thread_pool, threading.get_ident, ranks=2) == first[:2]
    assert run(thread_pool, threading.get_ident, ranks=4)[:3] == first


def home_of(thing: object) -> str:
    """The module that made it, as far as it tells."""
    if isinstance(thing, types.FrameType):
        return str(thing.f_globals.get("__name__"))
    if isinstance(thing, types.FunctionType):
        return str(thing.__module__)
    return type(thing).__module__


def test_nothing_of_a_run_waits_for_the_garbage_collector(thread_pool: RankThreadPool) -> None:
    def body() -> None:
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)
        dist.barrier()

    with patched():
        for _ in range(3):  # what is made once
            run(thread_pool, body, ranks=2)
        for _ in range(3):  # threads that earlier tests left may let go of theirs
            homes = garbage_of(lambda: run(thread_pool, body, ranks=2))
            # A worker of pytest-xdist has a thread that makes garbage of its own.
            ours = {home for home in homes if home.startswith(("phalanx", "torch"))}
            if not ours:
                return
        pytest.fail(f"garbage of {ours}: {homes}")


def garbage_of(runs: Callable[[], object]) -> Counter[str]:
    """The homes of what only the garbage collector frees after three runs."""
    while gc.collect():  # what finalizers of earlier tests let go is garbage in its turn
        pass
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            runs()
        gc.collect()
        return Counter(map(home_of, gc.garbage))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_without_a_crew_no_thread_outlives_a_run() -> None:
    before = threading.active_count()
    phalanx.run(threading.get_ident, ranks=3)
    assert threading.active_count() == before


def test_groups_are_new_each_time(thread_pool: RankThreadPool) -> None:
    def body() -> tuple[int, float]:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        dist.new_group([0, 1])
        return dist.get_pg_count(), tensor.item()

    assert run(thread_pool, body) == run(thread_pool, body) == [(2, 3.0)] * 3


def which_group() -> int:
    return id(dist.group.WORLD)


def test_a_group_that_was_left_alone_is_handed_on(thread_pool: RankThreadPool) -> None:
    def use() -> int:
        dist.all_reduce(torch.ones(1))
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()
        return which_group()

    first = run(thread_pool, use)
    assert run(thread_pool, use) == first
    assert run(thread_pool, which_group) == first
    assert run(thread_pool, which_group, ranks=2) != first[:2]


def make_another() -> None:
    dist.new_group([0, 1])


def make_and_destroy_another() -> None:
    dist.destroy_process_group(dist.new_group([0, 1, 2]))


def destroy_all() -> None:
    dist.destroy_process_group()


def make_it_again() -> None:
    dist.destroy_process_group()
    dist.init_process_group("gloo")


def set_an_attribute() -> None:
    dist.group.WORLD.remark = "mine"


def set_an_option() -> None:
    dist.group.WORLD.options.remark = "mine"


def bind_a_device() -> None:
    dist.group.WORLD.bound_device_id = torch.device("cpu", 0)


def connect_eagerly() -> None:
    dist.group.WORLD.eager_connect_single_device(None)


def set_a_timeout() -> None:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=5), dist.group.WORLD)


def leave_a_key() -> None:
    dist.distributed_c10d._get_default_store().set("left", "over")


def split_it() -> None:
    dist.group.WORLD.split_group([0, 1])


def change_it_on_one_rank() -> None:
    if dist.get_rank() == 1:
        dist.group.WORLD.remark = "mine"


@pytest.mark.parametrize(
    "change",
    [
        make_another,
        make_and_destroy_another,
        destroy_all,
        make_it_again,
        set_an_attribute,
        set_an_option,
        bind_a_device,
        connect_eagerly,
        set_a_timeout,
        leave_a_key,
        split_it,
        change_it_on_one_rank,
    ],
)
def test_a_group_that_was_changed_is_not(thread_pool: RankThreadPool, change) -> None:
    def look() -> tuple:
        group = dist.group.WORLD
        store = dist.distributed_c10d._get_default_store()
        return (
            dist.get_pg_count(),
            hasattr(group, "remark"),
            hasattr(group.options, "remark"),
            store.check(["left"]),
            group._limit,
            group._splits,
            group._mailbox.record.eager,
            group.bound_device_id,
        )

    before = run(thread_pool, look)
    groups = run(thread_pool, lambda: dist.group.WORLD)
    run(thread_pool, change)
    after = run(thread_pool, lambda: dist.group.WORLD)
    assert not any(one is other for one in groups for other in after)
    assert run(thread_pool, look) == before


def test_calls_are_counted_anew(thread_pool: RankThreadPool) -> None:
    def disagree() -> None:
        dist.all_reduce(torch.ones(1 + dist.get_rank()))

    run(thread_pool, lambda: [dist.barrier() for _ in range(5)] and None)
    with pytest.raises(phalanx.CollectiveMismatchError, match="call #0 on this group"):
        run(thread_pool, disagree)


def test_what_was_left_open_is_told_once(thread_pool: RankThreadPool) -> None:
    def send() -> None:
        if dist.get_rank() == 0:
            dist.isend(torch.ones(1), dst=1)

    found = []
    for body in (send, which_group, send, which_group):
        told: list = []
        run(thread_pool, body, on_findings=told.extend)
        found.append(len(told))
    assert found == [1, 0, 1, 0]


def test_a_schedule_makes_its_own_groups(thread_pool: RankThreadPool) -> None:
    def once() -> tuple[list, int]:
        engine = ThreadsEngine(Settings(ranks=3, seed=7), thread_pool=thread_pool)
        try:
            return engine.run(lambda context: which_group()), engine.fingerprint
        finally:
            engine.close()

    _, fingerprint = once()
    _, same = once()
    assert fingerprint == same
    run(thread_pool, which_group)
    assert once()[1] == fingerprint


def leave_gradients_off() -> None:
    torch.set_grad_enabled(False)


def leave_inference_on() -> None:
    torch.inference_mode().__enter__()


def leave_a_device() -> None:
    torch.set_default_device("meta")


def leave_autocast_on() -> None:
    torch.set_autocast_enabled("cpu", True)


def leave_another_autocast() -> None:
    torch.set_autocast_dtype("cpu", torch.float16)


def leave_no_autocast_cache() -> None:
    torch.set_autocast_cache_enabled(False)


def leave_denormals_flushed() -> None:
    torch.set_flush_denormal(True)


def leave_a_trace() -> None:
    sys.settrace(lambda *about: None)


@pytest.mark.parametrize(
    "leave",
    [
        leave_gradients_off,
        leave_inference_on,
        leave_a_device,
        leave_autocast_on,
        leave_another_autocast,
        leave_no_autocast_cache,
        leave_denormals_flushed,
        leave_a_trace,
    ],
)
def test_what_a_thread_keeps_does_not_reach_the_next_run(
    thread_pool: RankThreadPool, leave
) -> None:
    def state():
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
            sys.float_info.min / len("ab"),
            torch.empty(0).device.type,
            sys.gettrace(),
        )

    before = run(thread_pool, state)
    run(thread_pool, leave)
    assert run(thread_pool, state) == before


def test_context_variables_do_not_reach_the_next_run(thread_pool: RankThreadPool) -> None:
    run(thread_pool, lambda: _left.set("something") and None)
    assert run(thread_pool, _left.get) == ["nothing"] * 3


class Defaults(threading.local):
    def __init__(self) -> None:
        self.groups: list = []


@pytest.mark.parametrize("forgets", [FORGETS_LOCALS, False])
def test_what_a_program_keeps_by_thread_does_not_reach_the_next_run(
    thread_pool: RankThreadPool, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libraries do, with their groups. A thread that cannot forget is not used again."""
    cache, more = threading.local(), Defaults()
    if not forgets:
        monkeypatch.setattr("phalanx.core.thread_pool.FORGETS_LOCALS", False)
        monkeypatch.setattr("phalanx.engines.threads.threads_engine.FORGETS_LOCALS", False)

    def body() -> tuple[int, int, float]:
        if not hasattr(cache, "group"):
            cache.group = dist.new_group()
        more.groups.append(cache.group)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=cache.group)
        return threading.get_ident(), len(more.groups), tensor.item()

    def idents(values: list) -> list:
        return [value[0] for value in values]

    first, second = run(thread_pool, body), run(thread_pool, body)
    assert [value[1:] for value in first + second] == [(1, 3.0)] * 6
    if forgets:
        assert idents(first) == idents(second)


def test_a_forked_child_starts_threads_of_its_own(thread_pool: RankThreadPool) -> None:
    first = run(thread_pool, which_group)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            again = run(thread_pool, which_group, timeout=5)
            status = 0 if len(again) == 3 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(wait_for(child)) == 0
    assert run(thread_pool, which_group) == first


def wait_for(child: int) -> int:
    for _ in range(200):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def test_a_run_that_fails_takes_its_threads_with_it(thread_pool: RankThreadPool) -> None:
    def fail() -> None:
        if dist.get_rank() == 1:
            raise ValueError("on purpose")
        dist.barrier()

    first = run(thread_pool, threading.current_thread)
    with pytest.raises(phalanx.RankFailedError, match="on purpose"):
        run(thread_pool, fail)
    second = run(thread_pool, threading.current_thread)
    assert not any(thread.is_alive() for thread in first)
    assert not set(first) & set(second)


def test_threads_of_ranks_start_threads_that_are_waited_for(
    thread_pool: RankThreadPool,
) -> None:
    def body() -> bool:
        return threading.Thread(target=int).daemon

    assert run(thread_pool, body) == [False] * 3
    assert run(thread_pool, body) == [False] * 3


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")
def test_threads_stay_on_one_core_until_they_start_others(thread_pool: RankThreadPool) -> None:
    def natives() -> list[int]:
        return [thread.native_id for thread in run(thread_pool, threading.current_thread)]

    for _ in range(3):
        ids = natives()
    pinned = [os.sched_getscheduler(native) for native in ids]
    assert pinned == [os.SCHED_BATCH if len(os.sched_getaffinity(0)) > 1 else 0] * 3
    release = threading.Event()
    run(
        thread_pool,
        lambda: threading.Thread(target=release.wait, args=(5,), daemon=True).start(),
    )
    free = [os.sched_getscheduler(native) for native in ids]
    release.set()
    assert free == [os.SCHED_OTHER] * 3


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/status"), reason="Linux only")
def test_threads_that_begin_when_the_others_have_been_sent_apart_have_all_cores(
    thread_pool: RankThreadPool,
) -> None:
    """The monitor sends them apart while the first one computes, before the others begin."""

    def cores() -> str:
        if dist.get_rank() == 0:
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                pass
        with open("/proc/thread-self/status") as status:
            return next(line for line in status if line.startswith("Cpus_allowed_list"))

    with open("/proc/self/status") as status:
        ours = next(line for line in status if line.startswith("Cpus_allowed_list"))
    assert run(thread_pool, cores) == run(thread_pool, cores) == [ours] * 3


def test_closing_twice_and_without_a_run() -> None:
    before = threading.enumerate()
    plain = RankThreadPool()
    plain.close()
    plain.close()
    assert threading.enumerate() == before
