"""What one call on warm ranks may ask for: to begin afresh, a limit, its own output."""

from __future__ import annotations

import builtins
import ctypes
import io
import logging
import os
import random
import resource
import select
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.engines.processes.inherited_settings import read_settings, write_settings
from phalanx.engines.processes.processes_engine import ProcessesEngine, ProcessSettings
from phalanx.engines.processes.rank_beginning import MOST_GROUPS


@pytest.fixture(scope="module")
def engine():
    made = ProcessesEngine(ProcessSettings(ranks=2, backend="gloo", timeout=30.0))
    yield made
    made.close()


def total() -> float:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def leave_traces() -> list[float]:
    os.environ["LEFT"] = "behind"
    os.environ.pop("RANK")
    os.chdir("/")
    sys.argv.append("--more")
    sys.path.insert(0, "/nowhere")
    dist.new_group([0, 1])
    dist.new_group([0])
    return [torch.rand(1).item(), random.random()]


def look_around() -> dict[str, object]:
    return {
        "left": os.environ.get("LEFT"),
        "rank": os.environ.get("RANK"),
        "folder": os.getcwd(),
        "argv": list(sys.argv),
        "path": sys.path[0],
        "groups": dist.get_pg_count(),
        "drawn": [torch.rand(1).item(), random.random()],
        "process": os.getpid(),
    }


def test_a_fresh_call_finds_a_rank_as_it_was_started(engine) -> None:
    drawn = engine.call(leave_traces, fresh=True)
    kept = engine.call(look_around)
    fresh = engine.call(look_around, fresh=True)
    for rank in range(2):
        assert kept[rank]["left"] == "behind" and kept[rank]["groups"] > 1
        assert fresh[rank]["process"] == kept[rank]["process"]
        assert fresh[rank] | {"process": 0} == {
            "left": None,
            "rank": str(rank),
            "folder": os.getcwd(),
            "argv": sys.argv,
            "path": sys.path[0],
            "groups": 1,
            "drawn": drawn[rank],
            "process": 0,
        }


def leave_settings() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    torch.set_num_threads(3)
    torch.set_autocast_enabled("cpu", True)
    torch.set_flush_denormal(True)
    warnings.simplefilter("error")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.alarm(50)
    os.umask(0o77)
    builtins.input = len
    sys.stdin = io.StringIO("left")
    sys.setrecursionlimit(5000)


def settings() -> dict[str, object]:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.empty(0).device,
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "threads": torch.get_num_threads(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "smallest": sys.float_info.min / len("ab"),
        "filters": tuple((each[0], each[2].__name__) for each in warnings.filters),
        "handler": signal.getsignal(signal.SIGUSR1),
        "alarm": signal.alarm(0),
        "umask": umask,
        "input": builtins.input.__name__,
        "stdin": type(sys.stdin).__name__,
        "recursion": sys.getrecursionlimit(),
    }


def change_settings() -> None:
    torch.set_default_dtype(torch.bfloat16)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")
    torch.multiprocessing.set_sharing_strategy("file_system")
    sys.setrecursionlimit(2345)
    logging.disable(logging.ERROR)


def shown_settings() -> tuple[object, ...]:
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.multiprocessing.get_sharing_strategy(),
        sys.getrecursionlimit(),
        logging.root.manager.disable,
    )


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_ranks_begin_with_the_settings_of_the_program(kind: Any) -> None:
    before, plain = read_settings(), shown_settings()
    try:
        change_settings()
        with torch.device("meta"):
            changed = shown_settings()
            assert not set(plain) & set(changed)
            assert phalanx.run(shown_settings, ranks=2, engine=kind) == [changed] * 2
    finally:
        write_settings(before)
    assert phalanx.run(shown_settings, ranks=2, engine=kind) == [plain] * 2


def import_a_coverage_of_the_programs_own() -> bool:
    sys.modules["coverage"] = type(sys)("coverage")
    numpy.random.set_bit_generator(numpy.random.PCG64(1))
    return "coverage" in sys.modules


def test_a_call_does_not_end_by_what_the_program_calls_coverage(engine) -> None:
    assert engine.call(import_a_coverage_of_the_programs_own, fresh=True) == [True] * 2


def test_a_generator_of_another_kind_is_not_passed_on(engine) -> None:
    kind = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(1))
    try:
        assert engine.call(total, fresh=True) == [2.0] * 2
    finally:
        numpy.random.set_bit_generator(kind)


def test_a_fresh_call_finds_the_settings_of_the_start(engine) -> None:
    first = engine.call(settings, fresh=True)
    engine.call(leave_settings, fresh=True)
    kept = engine.call(settings)
    assert not set(first[0].items() & kept[0].items())  # every one of them was changed
    engine.call(leave_settings, fresh=True)
    pids = engine.call(os.getpid)
    assert engine.call(settings, fresh=True) == first
    assert engine.call(os.getpid) == pids


_entered: list[Any] = []


def enter_and_stay(kind: str) -> int:
    _entered.append(torch.inference_mode() if kind == "inference" else torch.device("meta"))
    _entered[-1].__enter__()
    return os.getpid()


def modes() -> tuple[bool, str]:
    return torch.is_inference_mode_enabled(), torch.empty(0).device.type


@pytest.mark.parametrize("kind", ["inference", "device"])
def test_what_cannot_be_put_back_costs_the_processes(engine, kind: str) -> None:
    assert engine.call(enter_and_stay, (kind,)) == engine.call(os.getpid)  # kept, as ever
    left = engine.call(enter_and_stay, (kind,), fresh=True)
    assert not set(left) & set(engine.call(os.getpid, fresh=True))
    assert engine.call(modes) == [(False, "cpu")] * 2


def die_soon() -> None:
    if dist.get_rank() == 1:
        timer = threading.Timer(0.1, os._exit, (3,))
        timer.daemon = True  # the call would wait for it
        timer.start()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")
def spoil(what: str) -> int:
    if what == "stream":
        sys.stdout.close()
    elif what == "descriptor":
        os.close(2)
    else:
        resource.setrlimit(resource.RLIMIT_CPU, (100_000, 200_000))
    return os.getpid()


@pytest.mark.parametrize("what", ["stream", "descriptor", "limit"])
def test_closed_streams_and_lower_limits_cost_the_processes(engine, what: str, capfd) -> None:
    left = engine.call(spoil, (what,), fresh=True)
    assert not set(left) & set(engine.call(os.getpid, fresh=True))
    engine.call(print, ("heard",), fresh=True)
    assert capfd.readouterr().out == "heard\nheard\n"


def test_a_fresh_call_is_not_blamed_for_a_rank_that_had_died(engine) -> None:
    pids = engine.call(os.getpid)
    engine.call(die_soon, fresh=True, replay="the guilty one")
    wait_for_death(pids[1])
    with pytest.warns(phalanx.PhalanxWarning, match="rank 1 died with exit code 3") as told:
        assert engine.call(total, fresh=True) == [2.0, 2.0]
    assert "the last call: the guilty one" in str(told[0].message)
    pids = engine.call(os.getpid)
    engine.call(die_soon)
    wait_for_death(pids[1])
    with pytest.raises(phalanx.RankFailedError, match=r"rank 1.* died with exit code 3"):
        engine.call(total)  # it counts on what the call before has left


def wait_for_death(pid: int) -> None:
    with suppress(ProcessLookupError):
        watch = os.pidfd_open(pid)
        try:
            assert select.select([watch], [], [], 20)[0]
        finally:
            os.close(watch)


def wreck() -> None:
    """Leaves asynchronous calls that nobody meets, and numbers that differ by rank."""
    for _ in range(dist.get_rank()):
        dist.all_reduce(torch.ones(3), async_op=True)


def test_what_a_call_left_open_does_not_meet_the_next_fresh_one(engine) -> None:
    engine.call(wreck, fresh=True)
    assert engine.call(total, fresh=True) == [2.0, 2.0]


def test_ranks_are_replaced_when_too_many_groups_lie_about(engine) -> None:
    first = engine.call(os.getpid, fresh=True)
    found = {tuple(engine.call(os.getpid, fresh=True)) for _ in range(MOST_GROUPS + 2)}
    assert len(found) == 2 and tuple(first) in found
    assert engine.call(total, fresh=True) == [2.0, 2.0]


def destroy_by_myself() -> int:
    dist.destroy_process_group()
    return int(dist.is_initialized())


def test_a_fresh_call_after_one_that_destroyed_its_groups(engine) -> None:
    assert engine.call(destroy_by_myself) == [0, 0]
    assert engine.call(total, fresh=True) == [2.0, 2.0]


# -- a limit in all -----------------------------------------------------------------------


def never_still(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        dist.barrier()


def test_a_call_over_its_limit_ends_whatever_the_ranks_do(engine) -> None:
    engine.call(total)
    start = time.monotonic()
    with pytest.raises(phalanx.StallError) as caught:
        engine.call(never_still, [60.0], limit=1.0)
    assert time.monotonic() - start < 40
    assert str(caught.value).startswith("over the limit of 1 s; ranks 0, 1 at ")
    assert set(caught.value.verdict.stacks) == {0, 1}
    assert engine.call(total) == [2.0, 2.0]


def sleep_in_native_code() -> None:
    if dist.get_rank() == 1:
        ctypes.PyDLL(None).sleep(60)  # no other thread runs; a signal ends it
    dist.barrier()


def test_a_rank_that_goes_on_because_it_was_asked_is_over_the_limit_all_the_same(
    engine,
) -> None:
    engine.call(total)
    with pytest.raises(phalanx.StallError) as caught:
        engine.call(sleep_in_native_code, limit=3.0)  # time to get there, if it is busy
    error = caught.value
    assert error.verdict.over_limit and error.verdict.ranks == (1,)
    assert "sleep(60)" in error.verdict.stacks[1][-1].source
    seen = {block.ranks: block.view.status for block in error.verdict.blocks}
    assert seen == {(0,): "waiting", (1,): "outside"}


def test_a_call_within_its_limit(engine) -> None:
    assert engine.call(total, limit=30.0) == [2.0, 2.0]


# -- the line that says how to run it again -----------------------------------------------


def differ() -> None:
    dist.all_reduce(torch.ones(1 + dist.get_rank()))


def leave_open() -> None:
    if dist.get_rank() == 0:
        dist.barrier()


def test_the_replay_line_is_that_of_the_call(engine) -> None:
    engine.call(total, replay="the first")
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        engine.call(differ, replay="the second")
    assert str(caught.value).endswith("replay    the second")
    engine.call(total, replay="the third")
    with pytest.raises(phalanx.DeadlockError) as caught:
        engine.call(leave_open)
    assert "replay" not in str(caught.value)


# -- output -------------------------------------------------------------------------------


def speak() -> None:
    print("hello from", dist.get_rank())
    print("and this", file=sys.stderr)
    print("no end", end="")


def test_the_output_of_one_call_for_its_caller(engine, capfd) -> None:
    heard: dict[tuple[int, str], str] = {}

    def hear(rank: int, stream: str, text: str) -> None:
        heard[rank, stream] = heard.get((rank, stream), "") + text

    engine.call(speak, on_output=hear)
    assert heard == {
        (0, "out"): "hello from 0\nno end",
        (1, "out"): "hello from 1\nno end",
        (0, "err"): "and this\n",
        (1, "err"): "and this\n",
    }
    assert capfd.readouterr() == ("", "")
    engine.call(speak)
    assert "hello from 1\n" in capfd.readouterr().out
