"""Plans of faults on ranks that are processes: each kind of fault at each kind of point."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.errors import PhalanxError
from phalanx.journal.events import FaultStruck, Posted, RankEnded
from tests.forked_programs import run_forked, start_forked

LIMIT = 2.0
"""Seconds of the groups whose calls time out here."""

KINDS = {
    "lost": re.compile(r"closed by peer|reset by peer|broken pipe|failed to recv", re.I),
    "late": re.compile(r"timed out waiting 2000ms", re.I),
}
"""What Gloo and torch's stores say of a lost connection, and of a group's timeout."""


def run(fn: Callable[..., Any], plan: str, *args: Any, ranks: int = 3, **options: Any) -> Any:
    given = {"engine": "processes", "timeout": 40.0, **options}
    return phalanx.run(functools.partial(fn, *args), ranks=ranks, faults=plan, **given)


# -- what runs in the ranks ---------------------------------------------------------------


def told(error: Exception) -> str:
    """What is the same each time."""
    for kind, words in KINDS.items():
        if words.search(str(error)):
            return f"{type(error).__name__}: {kind}"
    return f"{type(error).__name__}: {error}"


def reduce_five_times(pause: float = 0.0, limit: float = 60.0) -> list[Any]:
    """The sums, until one fails."""
    group = dist.new_group(timeout=timedelta(seconds=limit))
    seen: list[Any] = []
    for _ in range(5):
        try:
            tensor = torch.ones(2)
            dist.all_reduce(tensor, group=group)
            seen.append(tensor[1].item())
        except Exception as error:
            return [*seen, told(error)]
        time.sleep(pause)
    return seen


def reduce_until_one_fails(limit: float = 60.0) -> list[Any]:
    group = dist.new_group(timeout=timedelta(seconds=limit))
    done = 0
    while True:
        try:
            dist.all_reduce(torch.ones(2), group=group)
            done += 1
            time.sleep(0.01)
        except Exception as error:
            return [done, told(error)]


def reduce_together(lost: int) -> list[Any]:
    """The same; nobody sees the end of another survivor's program."""
    store = dist.distributed_c10d._get_default_store()
    seen = reduce_five_times(limit=LIMIT)
    store.set(f"end {dist.get_rank()}", "")
    store.wait([f"end {each}" for each in range(dist.get_world_size()) if each != lost])
    return seen


def reduce_carelessly() -> None:
    for _ in range(5):
        dist.all_reduce(torch.ones(2))


def count_steps(steps: int = 20) -> list[float]:
    """No calls of groups: one step after the other, with a time each."""
    times = [time.monotonic()]
    for _ in range(steps):
        time.sleep(0.05)
        times.append(time.monotonic())
    return [later - before for before, later in itertools.pairwise(times)]


def mark_lines(folder: str) -> int:
    done = Path(folder, str(dist.get_rank()))
    for step in range(5):
        done.write_text(str(step))  # the marked line
    return 5


def use_store(pause: float = 0.0) -> list[Any]:
    """Each rank writes a key of its own five times and reads it."""
    store, seen = dist.distributed_c10d._get_default_store(), list[Any]()
    for step in range(5):
        try:
            store.set(f"step of {dist.get_rank()}", str(step))
            seen.append(store.get(f"step of {dist.get_rank()}").decode())
        except Exception as error:
            return [*seen, told(error)]
        time.sleep(pause)
    return seen


def go_on_without(lost: int) -> float:
    """The survivors make a group of their own."""
    ranks = [rank for rank in range(dist.get_world_size()) if rank != lost]
    with contextlib.suppress(RuntimeError):
        dist.barrier()
    group = dist.new_group(ranks, use_local_synchronization=True)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def sum_in_many_ways() -> list[Any]:
    rank, seen = dist.get_rank(), list[Any]()
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor)
    seen.append(tensor.tolist())
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor, async_op=True).wait()
    seen.append(tensor.tolist())
    own = torch.full((2,), float(rank))
    everything = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, own)
    seen += [torch.cat(everything).tolist(), own.tolist()]
    tensor = torch.full((2,), float(rank))
    dist.broadcast(tensor, 1)
    return [*seen, tensor.tolist()]


def line_of(fn: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(fn)
    number = next(first + at for at, line in enumerate(lines) if text in line)
    return f"{Path(__file__).name}:{number}"


# -- killed -------------------------------------------------------------------------------


@pytest.mark.parametrize("checks", ["all", "none"])
def test_survivors_see_what_gloo_says_of_a_killed_rank(checks):
    seen = run(reduce_five_times, "kill(rank=2, at=call(3))", checks=checks)
    assert seen == [[3.0, 3.0, "RuntimeError: lost"], [3.0, 3.0, "RuntimeError: lost"], None]


def test_a_rank_is_killed_at_a_moment():
    seen = run(reduce_until_one_fails, "kill(rank=2, at=moment(1.5))")
    assert [each and each[-1] for each in seen] == [*["RuntimeError: lost"] * 2, None]
    assert seen[0][0] > 0


def test_a_rank_is_killed_at_a_line(tmp_path):
    at = line_of(mark_lines, "# the marked line")
    seen = run(mark_lines, f'kill(rank=1, at=line("{at}", 3))', str(tmp_path))
    assert seen == [5, None, 5]
    assert [Path(tmp_path, str(rank)).read_text() for rank in range(3)] == ["4", "1", "4"]


def test_a_rank_is_killed_at_an_operation_on_the_store():
    seen = run(use_store, "kill(rank=1, at=store(4))")
    assert seen == [list("01234"), None, list("01234")]


@pytest.mark.parametrize("lost", [0, 2])
def test_survivors_may_go_on_in_a_group_of_their_own(lost):
    seen = run(go_on_without, f"kill(rank={lost}, at=call(1))", lost)
    assert seen == [None if rank == lost else 2.0 for rank in range(3)]


def test_a_survivor_that_fails_is_reported_with_the_kill_first():
    with pytest.raises(phalanx.RankFailedError) as caught:
        run(reduce_carelessly, "kill(rank=2, at=call(3))")
    fault = " ".join(str(caught.value).split("\n\n")[1].split())
    place = line_of(reduce_carelessly, "dist.all_reduce")
    assert fault.startswith("fault rank 2 was killed at its call 3, ")
    assert fault.endswith(place)
    assert 2 not in caught.value.failures


def test_a_killed_rank_is_named_where_others_never_come_on():
    with pytest.raises(phalanx.StallError) as caught:
        run(reduce_carelessly, "kill(rank=1, at=moment(0))", timeout=2.0)
    report = str(caught.value)
    assert "  fault     rank 1 was killed after 0 s" in report
    assert "ranks 0, 2   in init_process_group" in report
    assert "rank 1       was killed" in report


def test_a_run_of_which_all_ranks_are_killed_has_failed():
    with pytest.raises(phalanx.RankFailedError, match="died of SIGKILL"):
        run(count_steps, "kill(rank=0, at=moment(0.2))", ranks=1)


def test_the_journal_has_the_fault_and_as_many_calls_as_were_made():
    with phalanx.World(
        ranks=3, engine="processes", faults="kill(rank=2, at=call(3))", timeout=40
    ) as world:
        world.run(reduce_five_times)
        assert world.journal is not None
        events = list(world.journal.filter(rank=2))
    (struck,) = [each for each in events if isinstance(each, FaultStruck)]
    assert struck.shown == "kill(rank=2, at=call(3))"
    assert [each.how for each in events if isinstance(each, RankEnded)] == ["killed"]
    assert len([each for each in events if isinstance(each, Posted)]) == 2


# -- stopped, delayed ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stop", "delay"])
def test_a_short_absence_is_not_noticed(kind):
    seen = run(reduce_five_times, f"{kind}(rank=1, seconds=0.5, at=call(3))", 0.0, LIMIT)
    assert seen == [[3.0] * 5] * 3


@pytest.mark.parametrize("kind", ["stop", pytest.param("delay", marks=pytest.mark.slow)])
def test_the_timeout_of_a_group_strikes_in_a_long_one(kind):
    seen = run(reduce_five_times, f"{kind}(rank=1, seconds=4, at=call(3))", 0.0, LIMIT)
    assert seen[0] == seen[2] == [3.0, 3.0, "RuntimeError: late"]
    assert seen[1] == [3.0, 3.0, "RuntimeError: lost"]


@pytest.mark.parametrize("kind", [pytest.param("stop", marks=pytest.mark.slow), "delay"])
def test_a_rank_is_kept_away_at_a_moment(kind):
    steps = run(count_steps, f"{kind}(rank=1, seconds=1, at=moment(1.5))", 80)
    longest = [max(each) for each in steps]
    assert longest[1] > 0.9
    assert longest[0] < 0.9 and longest[2] < 0.9


def test_no_run_stands_still_while_a_rank_is_stopped():
    seen = run(reduce_five_times, "stop(rank=1, seconds=3, at=call(3))", timeout=1.0)
    assert seen == [[3.0] * 5] * 3


def test_a_rank_that_is_stopped_when_the_run_fails_is_ended(tmp_path):
    plan = "stop(rank=1, seconds=900, at=call(1)), raise_(OSError, rank=2, at=moment(0.5))"
    with pytest.raises(phalanx.RankFailedError, match="rank 2 raised OSError"):
        run(wait_and_tell, plan, str(tmp_path))
    pid = int(Path(tmp_path, "1").read_text())
    assert not is_alive(pid)


def wait_and_tell(folder: str) -> None:
    Path(folder, str(dist.get_rank())).write_text(str(os.getpid()))
    if dist.get_rank() == 1:
        dist.barrier()
    time.sleep(60)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- raised -------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["call(3)", "line", "moment(0.3)"])
def test_an_error_is_raised_at_the_line_of_the_program(point):
    fn: Any = reduce_carelessly if point != "moment(0.3)" else count_steps
    at = line_of(fn, "dist.all_reduce" if fn is reduce_carelessly else "time.sleep")
    shown = f'line("{at}")' if point == "line" else point
    with pytest.raises(phalanx.RankFailedError) as caught:
        run(fn, f'raise_(MemoryError("full"), rank=1, at={shown})')
    verdict = caught.value.verdict
    assert verdict is not None and verdict.raised == (((1,), "MemoryError: full"),)
    if point != "moment(0.3)":
        assert f"{verdict.sites[1].file}:{verdict.sites[1].line}".endswith(at)


def test_an_error_whose_moment_comes_in_a_call_is_raised_when_the_call_is_over():
    plan = "raise_(OSError('no route'), rank=1, at=moment(0.5))"
    assert run(wait_in_a_call, plan) == [3.0, "OSError: no route", 3.0]


def wait_in_a_call() -> Any:
    """Ranks 0 and 2 come a second later."""
    if dist.get_rank() != 1:
        time.sleep(1.5)
    tensor = torch.ones(1)
    try:
        dist.all_reduce(tensor)
        time.sleep(0.2)
    except OSError as error:
        return told(error)
    return tensor.item()


def test_a_program_may_handle_what_is_raised():
    seen = run(use_store, "raise_(OSError('no route'), rank=1, at=store(3))")
    assert seen == [list("01234"), ["0", "OSError: no route"], list("01234")]


# -- cut, lost ----------------------------------------------------------------------------


def test_the_timeout_of_a_group_strikes_in_a_partition():
    plan = "partition([0], [1, 2], during=(1.5, None))"
    seen = run(reduce_until_one_fails, plan, LIMIT)
    assert {each[-1] for each in seen} <= {"RuntimeError: late", "RuntimeError: lost"}
    assert "RuntimeError: late" in {each[-1] for each in seen}


def test_a_short_partition_is_not_noticed():
    plan = "partition([0], [1, 2], during=(0.5, 1.5))"
    assert run(reduce_five_times, plan, 0.3) == [[3.0] * 5] * 3


def test_a_store_loses_its_server_where_a_rank_comes_to_it():
    seen = run(use_store_together, "drop_store(rank=1, at=store(1))")
    assert seen == [["DistNetworkError: lost"]] * 3


def use_store_together() -> list[Any]:
    """Rank 1 comes to the store first."""
    dist.barrier()
    found = use_store() if dist.get_rank() == 1 else []
    dist.barrier()
    return found or use_store()


def test_a_store_is_served_again_with_nothing_in_it():
    seen = run(find_new_store, "drop_store(at=moment(1.5), seconds=1)", ranks=2)
    assert seen == [(True, False), (True, False)]


def find_new_store() -> tuple[bool, bool]:
    """Whether the connection of before is lost, and whether a new one finds what was there."""
    port = int(os.environ["MASTER_PORT"])
    if dist.get_rank() == 0:
        server = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    dist.barrier()
    limit = timedelta(seconds=30)
    store = dist.TCPStore("127.0.0.1", port, timeout=limit, wait_for_workers=False)
    store.set(f"key {dist.get_rank()}", "value")
    if dist.get_rank() == 0:
        server.set("known", "here")
    began = time.monotonic()
    while time.monotonic() - began < 30:
        try:
            store.get(f"key {dist.get_rank()}")
            time.sleep(0.05)
        except dist.DistNetworkError:
            time.sleep(1.5)
            again = dist.TCPStore("127.0.0.1", port, timeout=limit, wait_for_workers=False)
            return True, again.check([f"key {dist.get_rank()}"])
    return False, True


# -- corrupted ----------------------------------------------------------------------------


def differences(plan: str, plain: list[Any]) -> list[tuple[int, int]]:
    """The rank and the place of each value that is another one than without faults."""
    seen = run(sum_in_many_ways, plan)
    return [
        (rank, at)
        for rank, (some, others) in enumerate(zip(plain, seen, strict=True))
        for at, (one, other) in enumerate(zip(some, others, strict=True))
        if one != other
    ]


def test_a_call_is_corrupted_in_what_a_rank_gets_or_gives():
    plain = run(sum_in_many_ways, "")
    assert differences("corrupt(rank=1, call=1)", plain) == [(1, 0)]
    assert differences("corrupt(rank=1, call=2, bits=3)", plain) == [(1, 1)]
    assert differences("corrupt(rank=1, call=3)", plain) == [(1, 2)]
    given = "corrupt(rank=1, call={}, part='contribution')"
    assert differences(given.format(1), plain) == [(0, 0), (1, 0), (2, 0)]
    assert differences(given.format(3), plain) == [(0, 2), (1, 2), (2, 2)]
    assert differences(given.format(4), plain) == [(0, 4), (2, 4)]


# -- scripts, interrupts ------------------------------------------------------------------

SCRIPT = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(4):
    dist.all_reduce(torch.ones(1))
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


def test_ranks_start_again_and_no_fault_strikes_twice(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plan = "kill(rank=1, at=call(3)), kill(rank=0, at=call(4))"
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "run",
        "-n",
        "2",
        "--engine",
        "processes",
        "--max-restarts",
        "2",
    ]
    command += ["--timeout", "40", "--faults", plan, str(script)]
    ended = run_forked(command, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "[0-1] attempt 2\n"
    assert "1. rank 1 died of SIGKILL" in ended.stderr
    assert "2. rank 0 died of SIGKILL" in ended.stderr


STOPPED = """
import os, sys, time
import torch.distributed as dist

dist.init_process_group("gloo")
print("rank", dist.get_rank(), "is", os.getpid(), flush=True)
try:
    if dist.get_rank() == 1:
        dist.barrier()
    time.sleep(60)
except KeyboardInterrupt:
    print("rank", dist.get_rank(), "cleans up", flush=True)
"""


def is_stopped(pid: int) -> bool:
    return "State:\tT" in Path(f"/proc/{pid}/status").read_text()


def test_ctrl_c_ends_a_rank_that_is_stopped(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STOPPED)
    command = [sys.executable, "-m", "phalanx", "run", "-n", "2", "--engine", "processes"]
    command += ["--faults", "stop(rank=1, seconds=900, at=call(1))", str(script)]
    with start_forked(command) as program:
        program.wait_for("rank 1 is")
        pid = int(re.findall(r"rank 1 is (\d+)", program.written())[0])
        while not is_stopped(pid):
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(30)
    assert program.returncode == 130
    assert "rank 0 cleans up" in out
    assert "happened: stop(rank=1, seconds=900, at=call(1))" in err
    assert not is_alive(pid)


TESTS = """
import pytest
import torch
import torch.distributed as dist

@pytest.mark.ranks(3, engine="processes", faults="kill(rank=2, at=call(2))", timeout=40)
def test_survives():
    dist.barrier()
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(2))
    assert dist.get_rank() != 2

@pytest.mark.ranks(3, engine="processes", faults="kill(rank=2, at=call(2))", timeout=40)
def test_fails():
    dist.barrier()
    dist.all_reduce(torch.ones(2))

@pytest.mark.ranks(3, engine="processes", timeout=40)
def test_has_no_faults():
    dist.all_reduce(torch.ones(2))
"""


def test_tests_have_faults_of_their_own(tmp_path):
    (tmp_path / "test_killed.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = run_forked(command, cwd=tmp_path, timeout=100)
    assert "1 failed, 2 passed" in ended.stdout
    assert "  fault     rank 2 was killed at its call 2, test_killed.py:16" in ended.stdout


def test_faults_of_this_engine_are_not_for_torchrun():
    with pytest.raises(PhalanxError, match="use engine='processes'"):
        phalanx.options.Options(ranks=2, engine="torchrun", faults="kill(rank=1, at=call(1))")


def test_the_processes_of_a_run_with_faults_are_not_kept():
    plan = "raise_(OSError, rank=1, at=store(900))"  # which never happens
    with phalanx.World(ranks=2, engine="processes", faults=plan, timeout=40) as world:
        assert not set(world.run(os.getpid)) & set(world.run(os.getpid))


# -- the same on threads ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "plan", "args"),
    [
        (reduce_together, "kill(rank=2, at=call(3))", (2,)),
        pytest.param(
            reduce_five_times,
            "stop(rank=1, seconds=4, at=call(3))",
            (0.0, LIMIT),
            marks=pytest.mark.slow,
        ),
        (reduce_five_times, "delay(rank=1, seconds=0.1, at=call(3))", (0.0, LIMIT)),
        (use_store, "kill(rank=1, at=store(4))", ()),
        (use_store, "raise_(OSError('no route'), rank=1, at=store(3))", ()),
        (use_store_together, "drop_store(rank=1, at=store(1))", ()),
        (sum_in_many_ways, "corrupt(rank=1, call=2, bits=3, seed=5)", ()),
        (sum_in_many_ways, "corrupt(rank=1, call=3, part='contribution')", ()),
    ],
)
def test_a_plan_comes_to_the_same_where_ranks_are_threads(fn, plan, args):
    there = run(fn, plan, *args)
    here = run(fn, plan, *args, engine="threads")
    assert here == there
