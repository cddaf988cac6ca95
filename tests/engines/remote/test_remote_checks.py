"""Mistakes on real Gloo processes: the error and the whole report are those of threads.

What cannot be equal: the replay line names the engine, and ranks that run at the same time
may get further than threads do before another one's failure stops them.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import phalanx
from phalanx.cli.main import main
from phalanx.engines.remote.link import current
from phalanx.errors import RankDied, RankStopped
from tests.engines.remote import remote_programs as programs
from tests.support import assert_silent

RANKS = 4
GLOO: dict[str, Any] = {"backend": "gloo", "timeout": 30.0}


@pytest.fixture(scope="module")
def processes():
    with phalanx.World(ranks=RANKS, engine="processes", **GLOO) as world:
        yield world


@pytest.fixture(scope="module")
def threads():
    with phalanx.World(ranks=RANKS, **GLOO) as world:
        yield world


def error_of(world: phalanx.World, fn: Any, *args: Any) -> phalanx.PhalanxError:
    with pytest.raises(phalanx.PhalanxError) as caught:
        world.run(fn, *args)
    return caught.value


@pytest.mark.parametrize("place", [programs.on_the_world, programs.on_a_subgroup])
@pytest.mark.parametrize("mistake", programs.MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_reported_as_on_threads(processes, threads, mistake, place) -> None:
    ours, theirs = error_of(processes, place, mistake), error_of(threads, place, mistake)
    assert type(ours) is type(theirs)
    if mistake is programs.k1_failed and place is programs.on_a_subgroup:
        # The rank that is not in the group has returned, or has not begun.
        assert str(ours).partition(";")[0] == str(theirs).partition(";")[0]
    else:
        assert str(ours) == str(theirs)
        assert ours.verdict == theirs.verdict


@pytest.mark.parametrize("correct", programs.CORRECT, ids=lambda correct: correct.__name__)
def test_a_correct_program_stays_silent(processes, correct) -> None:
    assert_silent(correct, world=processes)


@pytest.mark.parametrize(
    ("below", "kind", "headline"),
    [
        (
            programs.ddp_with_an_unused_parameter,
            phalanx.CollectiveMismatchError,
            "rank 1 called barrier where ranks 0, 2, 3 called all_reduce",
        ),
        (
            programs.functional_counts,
            phalanx.CollectiveMismatchError,
            "rank 1 passed float32[6] where ranks 0, 2, 3 passed float32[4] to all_reduce",
        ),
        (
            programs.functional_skipped,
            phalanx.DeadlockError,
            "rank 1 returned; ranks 0, 2, 3 wait for it in call #",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_below_ddp_and_functional_collectives(
    processes, threads, below, kind, headline
) -> None:
    with pytest.raises(kind) as caught:
        processes._engine.call(below, fresh=True)
    ours, theirs = caught.value, error_of(threads, below)
    assert isinstance(ours, kind) and type(ours) is type(theirs)
    assert str(ours).startswith(headline), str(ours)
    assert str(ours) == str(theirs)


def test_models_that_differ_are_refused_by_ddp_and_the_others_stopped(processes) -> None:
    error = error_of(processes, programs.ddp_of_different_models)
    assert str(error).startswith("rank 1 raised RuntimeError: [1]: params[0] in this process")
    assert "stopped   ranks 0, 2, 3 in broadcast(src=0)" in str(error)


# -- inside the ranks ---------------------------------------------------------------------


def catch_and_go_on() -> list[str]:
    caught = []
    for mistake in (programs.e7_counts, programs.f14_ring, programs.e1_roots):
        try:
            mistake(None)
        except RuntimeError as error:
            caught.append(type(error).__name__)
            assert isinstance(error, (dist.DistError, phalanx.PhalanxError))
            assert "remote_programs.py" in str(error)
    total = torch.ones(1)
    dist.all_reduce(total)
    return [*caught, str(total.item())]


def test_a_verdict_is_raised_in_the_ranks_and_the_group_lives_on(processes) -> None:
    kinds = ["CollectiveMismatchError", "DeadlockError", "CollectiveMismatchError"]
    assert processes.run(catch_and_go_on) == [[*kinds, "4.0"]] * RANKS


def unwind(path: str) -> None:
    try:
        if dist.get_rank() == 2:
            raise ValueError("no")
        dist.barrier()
    except BaseException as error:
        with open(f"{path}/{dist.get_rank()}", "w") as file:
            file.write(type(error).__name__)
        raise


def test_ranks_that_wait_unwind_when_another_fails(processes, tmp_path) -> None:
    error_of(processes, unwind, str(tmp_path))
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    stopped = RankStopped.__name__
    assert found == {"0": stopped, "1": stopped, "2": "ValueError", "3": stopped}


def fail_while_stopped() -> None:
    if dist.get_rank() == 0:
        raise ValueError("first")
    try:
        dist.barrier()
    finally:
        if dist.get_rank() == 1:
            raise KeyError("cleaning up")


def test_what_a_rank_raises_while_it_is_stopped_is_no_cause(processes) -> None:
    error = error_of(processes, fail_while_stopped)
    assert isinstance(error, phalanx.RankFailedError) and list(error.failures) == [0]
    assert "late      rank 1 raised KeyError: 'cleaning up' while it was being" in str(error)


def swallow_the_verdict() -> None:
    try:
        programs.e7_counts(None)
    except phalanx.CollectiveMismatchError:
        if dist.get_rank() == 1:
            raise LookupError("my own") from None
    time.sleep(0.2)


def test_a_failure_after_a_verdict_that_was_caught_is_the_error(processes) -> None:
    error = error_of(processes, swallow_the_verdict)
    assert isinstance(error, phalanx.RankFailedError)
    assert str(error).startswith("rank 1 raised LookupError: my own")


# -- death and time -----------------------------------------------------------------------


def tell_and_wait(path: str) -> None:
    with open(f"{path}/{dist.get_rank()}", "w") as file:
        file.write(str(os.getpid()))
    if dist.get_rank():
        dist.barrier()
    else:
        time.sleep(60)


def test_a_rank_killed_in_the_middle_of_a_collective(processes, tmp_path) -> None:
    def kill() -> None:
        while not (tmp_path / "2").exists() or not (tmp_path / "2").read_text():
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(int((tmp_path / "2").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    error = error_of(processes, tell_and_wait, str(tmp_path))
    killer.join()
    assert isinstance(error, phalanx.RankFailedError)
    assert isinstance(error.failures[2], RankDied) and list(error.failures) == [2]
    assert str(error).startswith("rank 2 died of SIGKILL")
    assert "ranks 1, 3 in barrier() (call #0)" in str(error)
    assert processes.run(dist.get_rank) == [0, 1, 2, 3]


def wait_for_a_time() -> str:
    group = dist.new_group(timeout=timedelta(seconds=0.4))
    start = time.monotonic()
    text = ""
    if dist.get_rank() == 0:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            text = str(error)
    else:
        time.sleep(1.0)
    assert time.monotonic() - start < 5
    return text


def die_after(calls: int) -> None:
    for _ in range(calls):
        dist.barrier()
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


@pytest.mark.slow  # by luck: how far the referee has read when the rank is found dead
def test_the_last_call_of_a_rank_that_left_no_trace(processes) -> None:
    text = str(error_of(processes, die_after, 5)).splitlines()
    assert text[0] == "rank 1 died with exit code 3"
    assert any("last seen after barrier() (call #4)" in line for line in text)


def test_the_timeout_of_a_group_ends_a_wait(processes) -> None:
    text = processes.run(wait_for_a_time)[0]
    assert text == "all_reduce: Timed out waiting 400ms for the other ranks"


def wait_for_a_work() -> list[str]:
    found = []
    tensor = torch.ones(1)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        try:
            work.wait(timedelta(seconds=0.3))
        except RuntimeError as error:
            found.append(type(error).__name__)
    else:
        time.sleep(0.8)
        dist.all_reduce(tensor)
    return found


def test_a_time_of_the_programs_own_is_no_deadlock(processes) -> None:
    assert processes.run(wait_for_a_work)[0] == ["OpTimeoutError"]


def compute_while_others_wait() -> None:
    if dist.get_rank() == 0:
        time.sleep(60)
    dist.barrier()


def leave_one_waiting(how: str) -> None:
    """Threads of libraries are there that could only communicate if somebody had them do it."""
    if how == "loader":
        loader = DataLoader(range(4), num_workers=1, persistent_workers=True)  # type: ignore
        assert len(list(loader)) == 4
        vars(dist)["_kept_alive"] = loader
    elif how == "executor":
        pool = ThreadPoolExecutor(2)
        pool.submit(dist.barrier).result()
    else:
        workers = ThreadPool(1)
        workers.apply(dist.barrier)
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("how", ["loader", "executor", "pool"])
def test_idle_threads_of_libraries_are_in_the_way_of_no_proof(processes, how) -> None:
    error = error_of(processes, leave_one_waiting, how)
    assert isinstance(error, phalanx.DeadlockError), error


def have_a_worker_communicate(rank: int) -> None:
    group = dist.new_group([0, 1])
    with ThreadPoolExecutor(2) as pool:
        if rank == 0:
            pool.submit(int).result()
            pool.submit(dist.barrier, group)
        elif rank == 1:
            dist.barrier(group)
            time.sleep(0.5)
        dist.barrier()


def test_a_worker_that_was_given_work_may_communicate(processes) -> None:
    for _ in range(5):
        assert_silent(lambda: have_a_worker_communicate(dist.get_rank()), world=processes)


def test_nothing_is_proved_while_a_rank_computes() -> None:
    with phalanx.World(ranks=2, engine="processes", backend="gloo", timeout=3.0) as world:
        error = error_of(world, compute_while_others_wait)
    assert isinstance(error, phalanx.StallError)
    text = str(error)
    assert re.match(r"no rank moved for 3(\.\d)? s; rank 0 at ", text)
    assert "needs rank 0, which is outside Phalanx's sight" in text


def test_without_checks_nothing_is_watched() -> None:
    with phalanx.World(ranks=2, engine="processes", checks="none", **GLOO) as world:
        assert world.run(is_watched) == [False, False]
    with phalanx.World(ranks=2, engine="processes", **GLOO) as world:
        assert world.run(is_watched) == [True, True]


def is_watched() -> bool:
    return dist.Work.wait.__module__ == "phalanx.engines.remote.watcher"


def mix_with_a_deprecated_name() -> None:
    """torch 2.13 puts a wrapper of `typing_extensions` around this one."""
    if dist.get_rank() == 1:
        dist.all_gather_into_tensor(torch.ones(8), torch.ones(2))
    else:
        dist.barrier()


def test_the_line_is_the_programs_also_where_torch_wraps_its_functions(processes) -> None:
    text = str(error_of(processes, mix_with_a_deprecated_name))
    assert ">  dist.all_gather_into_tensor(torch.ones(8), torch.ones(2))" in text


def fail_before_cleaning_up() -> None:
    """As a test does whose fixtures are torn down after it has failed."""
    if dist.get_rank() == 1:
        link = current()
        assert link is not None
        error = ValueError("told early")
        link.failed(error)
        time.sleep(0.3)
        raise error
    dist.barrier()


def test_a_failure_that_is_told_before_the_rank_ends(processes) -> None:
    error = error_of(processes, fail_before_cleaning_up)
    assert isinstance(error, phalanx.RankFailedError) and list(error.failures) == [1]
    assert "stopped   ranks 0, 2, 3 in barrier() (call #" in str(error)


def monitor(seconds: float) -> str:
    """The last rank does not come."""
    try:
        if dist.get_rank() < dist.get_world_size() - 1:
            dist.monitored_barrier(timeout=timedelta(seconds=seconds))
        else:
            time.sleep(2.0)
    except RuntimeError as error:
        return f"{type(error).__name__} {error}"
    return ""


def test_the_time_of_a_monitored_barrier_is_the_backends_business(processes) -> None:
    text = processes._engine.call(monitor, [0.5], fresh=True)[0]
    assert processes.findings == ()
    assert "DeadlockError" not in text and "monitoredBarrier" in text


# -- findings -----------------------------------------------------------------------------


def leave_open() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(2), 1, tag=3)
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(2), async_op=True)


def give_up() -> None:
    if dist.get_rank() == 0:
        work = dist.irecv(torch.ones(2), 1)
        try:
            work.wait(timedelta(milliseconds=50))
        except RuntimeError:
            return


def test_what_nobody_answered_is_found_as_on_threads() -> None:
    found = []
    for engine in ("threads", "processes"):
        with phalanx.World(ranks=3, engine=engine, **GLOO) as world:
            with pytest.warns(phalanx.PhalanxWarning):
                world.run(leave_open)
            found.append(world.findings)
            world.run(dist.get_rank)  # told once
            assert len(world.findings) == 2
    assert found[0] == found[1]


def test_what_was_given_up_is_no_finding(processes) -> None:
    processes._engine.call(give_up, fresh=True)
    assert processes.findings == ()


# -- from the command line ----------------------------------------------------------------

FOLDER = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "program", sorted((FOLDER / "programs").glob("*.py")), ids=lambda path: path.stem
)
def test_a_script_gives_the_report_of_threads(program, monkeypatch, capsys) -> None:
    monkeypatch.chdir(FOLDER / "programs")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main(["run", "--no-record", "-n", "4", program.name]) == 3
    theirs = capsys.readouterr().err
    assert main(["run", "--no-record", "-n", "4", "--engine", "processes", program.name]) == 3
    replay = "phalanx run --ranks 4"
    ours = capsys.readouterr().err.replace(f"{replay} --engine processes", replay)
    assert ours == theirs
    assert "phalanx: 4 ranks, " in ours  # the closing line, with as much counted
