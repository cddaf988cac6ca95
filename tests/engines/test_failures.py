"""What the caller of `run` sees when a rank fails, and what becomes of the other ranks."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
import traceback

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.engines.threads import threads_engine
from phalanx.errors import RankExited, RankStopped
from tests.forked_programs import start_forked
from tests.support import assert_silent


def fails(program, *, ranks: int = 4, **options) -> phalanx.PhalanxError:
    with pytest.raises(phalanx.PhalanxError) as caught:
        phalanx.run(program, ranks=ranks, **options)
    return caught.value


def on_rank(rank: int, act, otherwise=dist.barrier):
    """A program in which one rank does one thing and the others another."""

    def program():
        return act() if dist.get_rank() == rank else otherwise()

    return program


# -- a rank raises ------------------------------------------------------------------------


def bad_batch():
    raise ValueError("bad batch")


def test_the_error_names_the_rank_and_where_the_others_were() -> None:
    error = fails(on_rank(2, bad_batch))
    assert type(error) is phalanx.RankFailedError
    assert str(error).splitlines()[0] == "rank 2 raised ValueError: bad batch"
    assert list(error.failures) == [2] and type(error.failures[2]) is ValueError
    assert 'raise ValueError("bad batch")' in str(error)
    assert "stopped   ranks 0, 1 in barrier() (call #0) at " in str(error)
    assert error.verdict.ranks == (2,)


def test_the_cause_is_the_ranks_own_error_without_our_frames() -> None:
    def inner():
        dist.barrier()
        bad_batch()

    error = fails(inner)
    assert any(error.__cause__ is failure for failure in error.failures.values())
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    assert [frame.name for frame in frames] == ["inner", "bad_batch"]


def test_errors_that_our_errors_led_to_show_no_frames_of_ours_either() -> None:
    def program():
        if dist.get_rank() == 0:
            try:
                dist.recv(torch.zeros(1), src=1)
            except RuntimeError as error:
                raise ValueError("no partner") from error

    error = fails(program, ranks=2)
    shown = "".join(traceback.format_exception(error.__cause__))
    assert "ValueError: no partner" in shown and "DeadlockError" in shown
    assert f"{os.sep}phalanx{os.sep}" not in shown
    assert "distributed_c10d.py" not in shown


def test_first_failure_wins() -> None:
    def program():
        me = dist.get_rank()
        if me == 1:
            raise KeyError("the cause")
        try:
            dist.barrier()
        finally:
            raise ValueError(f"cleaning up {me}")

    error = fails(program, ranks=3)
    assert str(error).startswith("rank 1 raised KeyError: 'the cause'")
    assert list(error.failures) == [1]
    assert [rank for rank, _ in error.verdict.late] == [0, 2]
    assert "late      rank 0 raised ValueError: cleaning up 0 while it was" in str(error)


def test_the_others_are_unwound_at_their_waiting_point() -> None:
    cleaned = []

    def waiting():
        me = dist.get_rank()
        try:
            if me == 0:
                dist.barrier()
            elif me == 1:
                time.sleep(3600)
            elif me == 2:
                dist.recv(torch.zeros(1), src=4)
            elif me == 3:
                dist.distributed_c10d._get_default_store().get("never")
            elif me == 4:
                threading.Event().wait()
        except BaseException as error:
            cleaned.append((me, type(error)))
            raise
        finally:
            cleaned.append(me)

    error = fails(on_rank(5, bad_batch, otherwise=waiting), ranks=6)
    assert list(error.failures) == [5]
    assert sorted(str(item) for item in cleaned) == sorted(
        str(item) for me in range(5) for item in (me, (me, RankStopped))
    )


def test_who_cleans_up_cannot_communicate_any_more() -> None:
    seen = []

    def waiting():
        try:
            dist.barrier()
        finally:
            try:
                dist.barrier()
            except BaseException as error:
                seen.append(type(error))

    fails(on_rank(1, bad_batch, otherwise=waiting), ranks=2)
    assert seen == [RankStopped]


def test_errors_that_differ_by_rank_are_all_kept() -> None:
    def program():
        me = dist.get_rank()
        dist.barrier()  # the last to arrive raises first, and all are on their way by then
        raise (ValueError if me % 2 else KeyError)(f"rank {me}")

    error = fails(program)
    assert list(error.failures) == [0, 1, 2, 3]
    assert str(error).startswith("rank 3 raised ValueError: rank 3; ranks 0-2 raised other")
    for rank, failure in error.failures.items():
        assert type(failure) is (ValueError if rank % 2 else KeyError)
        assert failure.args == (f"rank {rank}",)


def test_ranks_that_raise_alike_are_told_once() -> None:
    def program():
        dist.barrier()
        bad_batch()

    error = fails(program)
    assert str(error).splitlines()[0] == "ranks 0-3 raised ValueError: bad batch"
    assert str(error).count("ranks 0-3   ValueError: bad batch") == 1


@pytest.mark.parametrize("code", [None, 0])
def test_a_rank_may_leave_by_sys_exit(code) -> None:
    assert phalanx.run(on_rank(1, lambda: sys.exit(code), lambda: 7), ranks=3) == [7, None, 7]


@pytest.mark.parametrize(
    ("code", "told"), [(3, "SystemExit: 3"), ("no data", "SystemExit: no data")]
)
def test_sys_exit_with_an_error_is_a_failure(code, told: str) -> None:
    error = fails(on_rank(1, lambda: sys.exit(code)))
    assert str(error).splitlines()[0] == f"rank 1 raised {told}"
    assert error.failures[1].code == code


def test_sys_exit_leaves_the_others_waiting_for_a_rank_that_left() -> None:
    error = fails(on_rank(1, sys.exit), ranks=3)
    assert type(error).__mro__[1] is phalanx.DeadlockError
    assert str(error).startswith("rank 1 called sys.exit at ")


def interrupt():
    raise KeyboardInterrupt


def test_a_keyboard_interrupt_raised_in_a_rank_is_that_ranks_failure() -> None:
    error = fails(on_rank(0, interrupt))
    assert str(error).splitlines()[0] == "rank 0 raised KeyboardInterrupt"
    assert type(error.__cause__) is KeyboardInterrupt


@pytest.mark.parametrize(
    ("brutality", "told"),
    [
        (lambda: os._exit(9), "rank 1 called os._exit with code 9"),
        (lambda: os.abort(), "rank 1 called os.abort with code 134"),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "rank 1 called os.kill on itself, SIGKILL, with code -9",
        ),
    ],
    ids=["os._exit", "os.abort", "os.kill"],
)
def test_brutality_ends_one_rank_and_not_the_process(brutality, told: str) -> None:
    error = fails(on_rank(1, brutality))
    assert str(error).splitlines()[0] == told
    assert type(error.failures[1]) is RankExited


def test_a_verdict_that_a_rank_raises_again_is_the_error() -> None:
    def program():
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1), src=1)

    error = fails(program, ranks=2)
    assert isinstance(error, phalanx.DeadlockError)
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.name for frame in frames][-1] == "program"


# -- verdicts -----------------------------------------------------------------------------


def receive_from_the_other():
    dist.recv(torch.zeros(1), src=1 - dist.get_rank())


def test_a_cycle_is_a_deadlock() -> None:
    error = fails(receive_from_the_other, ranks=2)
    assert isinstance(error, phalanx.DeadlockError)
    assert (error.verdict.cause, error.verdict.cycle) == ("cycle", (0, 1))
    assert "ranks 0 and 1 wait for each other" in str(error)


def test_a_finished_peer_is_a_deadlock() -> None:
    error = fails(on_rank(3, lambda: None))
    assert error.verdict.cause == "finished-peer"
    assert str(error).splitlines()[0] == "rank 3 returned; ranks 0-2 wait for it in call #0"


def test_a_key_that_nobody_sets_is_a_deadlock() -> None:
    def program():
        dist.distributed_c10d._get_default_store().get("address")

    error = fails(on_rank(0, program), ranks=2)
    assert error.verdict.cause == "nobody-can"
    assert 'no rank can set "address"' in str(error).replace("default_pg/0//", "")


def test_any_source_without_a_sender_is_a_deadlock() -> None:
    error = fails(lambda: dist.recv(torch.zeros(1)), ranks=3)
    assert isinstance(error, phalanx.DeadlockError)
    assert "needs a send from any of ranks" in str(error)


def test_two_groups_in_opposite_order_are_a_deadlock() -> None:
    def program():
        groups = [dist.new_group(), dist.new_group()]
        for group in groups if dist.get_rank() else reversed(groups):
            dist.barrier(group)

    error = fails(program, ranks=2)
    assert isinstance(error, phalanx.DeadlockError)
    assert error.verdict.cycle == (0, 1)


def reduce_ones(shape=(4,), dtype=torch.float32, op=dist.ReduceOp.SUM):
    return lambda: dist.all_reduce(torch.ones(shape, dtype=dtype), op=op)


@pytest.mark.parametrize(
    ("odd", "usual", "differs"),
    [
        (dist.barrier, reduce_ones(), "operation"),
        (reduce_ones((5,)), reduce_ones(), "shape"),
        (reduce_ones(dtype=torch.int64), reduce_ones(), "dtype"),
        (reduce_ones(op=dist.ReduceOp.MAX), reduce_ones(), "reduce op"),
        (
            lambda: dist.broadcast(torch.ones(4), src=1),
            lambda: dist.broadcast(torch.ones(4), src=0),
            "root",
        ),
    ],
    ids=["operation", "shape", "dtype", "reduce op", "root"],
)
@pytest.mark.parametrize("seed", [0, 5])
def test_calls_that_disagree_are_a_mismatch(odd, usual, differs: str, seed: int) -> None:
    error = fails(on_rank(2, odd, usual), seed=seed)
    assert isinstance(error, phalanx.CollectiveMismatchError)
    assert error.verdict.differs == (differs,)
    assert [block.ranks for block in error.verdict.blocks if block.odd] == [(2,)]
    assert str(error).splitlines()[0].startswith("rank 2 ")


def test_calls_that_disagree_explain_a_deadlock() -> None:
    """Rank 3 never comes, but ranks 0-2 disagree already."""

    def program():
        me = dist.get_rank()
        if me < 2:
            dist.all_reduce(torch.ones(1))
        elif me == 2:
            dist.barrier()

    error = fails(program)
    assert isinstance(error, phalanx.CollectiveMismatchError)
    assert error.verdict.missing == (3,)


def test_without_checks_nothing_is_compared() -> None:
    def program():
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(1))
        elif dist.get_rank() == 2:
            dist.barrier()

    assert isinstance(fails(program, checks="none"), phalanx.DeadlockError)


def test_inside_a_rank_our_errors_are_torchs_too_and_the_run_can_go_on() -> None:
    def program():
        me = dist.get_rank()
        caught = []
        with pytest.raises(RuntimeError) as deadlock:
            dist.recv(torch.zeros(1), src=(me + 1) % 3)
        caught.append(deadlock.value)
        with pytest.raises(dist.DistError) as mismatch:
            dist.all_reduce(torch.ones(me + 1))
        caught.append(mismatch.value)
        t = torch.tensor(float(me))
        dist.all_reduce(t)
        box = torch.zeros(1)
        sent = dist.isend(torch.ones(1) * me, (me + 1) % 3)
        dist.recv(box, (me - 1) % 3)
        sent.wait()
        return [type(error).__name__ for error in caught], t.item(), box.item()

    names = ["DeadlockError", "CollectiveMismatchError"]
    assert phalanx.run(program, ranks=3) == [
        (names, 3.0, float((rank - 1) % 3)) for rank in range(3)
    ]


def test_every_rank_gets_an_error_of_its_own() -> None:
    caught = []

    def program():
        try:
            receive_from_the_other()
        except phalanx.DeadlockError as error:
            caught.append(error)

    phalanx.run(program, ranks=2)
    assert len(caught) == 2 and caught[0] is not caught[1]
    assert caught[0].verdict == caught[1].verdict


def test_a_standstill_out_of_sight_is_a_stall_after_the_timeout() -> None:
    def lost():
        threading.Event().wait()

    error = fails(on_rank(1, lost), ranks=2, timeout=0.1)
    assert isinstance(error, phalanx.StallError)
    assert isinstance(error, dist.DistError)
    assert error.verdict.ranks == (1,) and error.verdict.seconds == 0.1
    first = str(error).splitlines()[0]
    assert first.startswith("no rank moved for 0.1 s; rank 1 is outside Phalanx's sight at ")
    assert "in lost" in str(error)


def test_a_rank_that_spins_is_a_stall_after_a_timeout_that_was_asked_for() -> None:
    def spin():
        while True:
            pass

    error = fails(on_rank(0, spin), ranks=2, timeout=0.2)
    assert isinstance(error, phalanx.StallError)
    assert error.verdict.ranks == (0,)
    assert str(error).startswith("no rank moved for 0.2 s; rank 0 is computing at ")


def test_a_run_over_its_limit_ends_although_its_ranks_move() -> None:
    def for_ever(context: object) -> None:
        while True:
            dist.barrier()

    engine = threads_engine.ThreadsEngine(threads_engine.Settings(ranks=2, limit=0.2))
    with pytest.raises(phalanx.StallError) as caught:
        engine.run(for_ever)
    engine.close()
    assert caught.value.verdict is not None and caught.value.verdict.over_limit
    assert str(caught.value).startswith("over the limit of 0.2 s; rank")


def test_over_the_limit_ranks_that_sleep_or_wait_for_their_threads_are_named() -> None:
    def body(context: object) -> None:
        if dist.get_rank() == 0:
            threading.Thread(target=time.sleep, args=(3,), name="left behind").start()
        else:
            time.sleep(1000)

    engine = threads_engine.ThreadsEngine(threads_engine.Settings(ranks=2, limit=1))
    with pytest.raises(phalanx.StallError) as caught:
        engine.run(body)
    engine.close()
    text = str(caught.value)
    assert text.startswith("over the limit of 1 s; rank 0 has returned, but not its thread\n")
    assert "returned; its thread left behind has not ended" in text
    assert ">  time.sleep(1000)" in text


def test_without_a_timeout_computing_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy():
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            pass
        dist.barrier()

    monkeypatch.setattr(threads_engine, "IDLE_STALL", 0.4)
    assert_silent(on_rank(0, busy))


def test_a_rank_that_sleeps_will_move_by_itself() -> None:
    def program():
        if dist.get_rank() == 0:
            time.sleep(1.5)
        dist.barrier()

    assert_silent(program, timeout=0.5)


# -- in processes of their own: what leaves threads behind, and Ctrl-C ----------------------

PATIENT = """
from phalanx.core import launcher
launcher.AFTER_INTERRUPT = launcher.Patience(nudge=0.1, again=0.35, give_up={give_up})
"""
"""A busy machine may take its seconds until each rank has heard of Ctrl-C."""

SWALLOWING = """
import phalanx, torch.distributed as dist
from phalanx.core import launcher
launcher.AFTER_FAILURE = launcher.Patience(nudge=0.1, again=0.2, give_up=0.5)

def program():
    if dist.get_rank() == 1:
        raise ValueError("bad batch")
    while True:
        try:
            dist.barrier()
        except BaseException:
            pass

try:
    phalanx.run(program, ranks=2)
except phalanx.RankFailedError as error:
    print(error)
"""

ENDLESS = """
import sys, time
import torch, torch.distributed as dist

def program():
    me = dist.get_rank()
    try:
        if me == 0:
            dist.barrier()
        elif me == 1:
            time.sleep(3600)
        elif me == 2:
            dist.recv(torch.zeros(1), src=3)
        else:
            sys.stdout.write("all are there\\n")
            sys.stdout.flush()
            turns = 0
            while True:
                turns += 1
    finally:
        sys.stdout.write(f"rank {me} cleaned up\\n")
        sys.stdout.flush()
"""

NESTED = """
import threading, time
import phalanx, torch.distributed as dist

def inner():
    try:
        if dist.get_rank() == 1:
            print("all are there", flush=True)
        time.sleep(3600)
    finally:
        print("inner rank", dist.get_rank(), "cleaned up", flush=True)

def outer():
    if dist.get_rank() == 0:
        phalanx.run(inner, ranks=2)
    dist.barrier()

try:
    phalanx.run(outer, ranks=2)
except KeyboardInterrupt:
    print("left:", [thread.name for thread in threading.enumerate()])
"""

SAVING = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
me = dist.get_rank()
try:
    if me == 0:
        dist.barrier()
    if me == 1:
        time.sleep(3600)
    print("all are there", flush=True)
    while True:
        pass
except KeyboardInterrupt:
    began = time.monotonic()
    while me == 2 and time.monotonic() - began < 2.5:  # longer than one who does not hear has
        pass
    print("saved", me, flush=True)
"""

CLEANING = """
import queue, subprocess, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch.distributed as dist
dist.init_process_group("gloo")
me = dist.get_rank()
dist.barrier()
try:
    if me == 0:
        subprocess.run(["sleep", "60"])
    if me == 1:
        subprocess.run(["sleep", "60"], capture_output=True)
    while me == 2:
        with ThreadPoolExecutor() as pool:
            pool.submit(time.sleep, 0.5).result()
    print("all are there", flush=True)
    queue.Queue().get()
except KeyboardInterrupt:
    time.sleep(0.1)
    said = subprocess.run(["echo", "well"], capture_output=True, text=True).stdout.strip()
    thread = threading.Thread(target=time.sleep, args=(0.1,))
    thread.start()
    thread.join()
    with ThreadPoolExecutor() as pool:
        pool.submit(print, me, "cleaned up", said, flush=True).result()
"""

AS_FUNCTION = ENDLESS + "\nimport phalanx\nphalanx.run(program, ranks=4)\n"
AS_SCRIPT = ENDLESS + '\ndist.init_process_group("gloo")\nprogram()\n'


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """All started at once."""
    folder = tmp_path_factory.mktemp("programs")
    patient = PATIENT.format(give_up=20.0)
    commands = {
        "swallowing": (SWALLOWING, []),
        "nested": (patient + NESTED, []),
        "function": (patient + AS_FUNCTION, []),
        "script": (patient + AS_SCRIPT, ["-m", "phalanx", "run", "-n", "4"]),
        "saving": (PATIENT.format(give_up=2.0) + SAVING, ["-m", "phalanx", "run", "-n", "3"]),
        "cleaning": (patient + CLEANING, ["-m", "phalanx", "run", "-n", "4"]),
    }
    started = {}
    for name, (source, words) in commands.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
        started[name] = start_forked([sys.executable, *words, f"{name}.py"], cwd=folder)
    yield started
    for process in started.values():
        with process:
            process.kill()


@pytest.mark.parametrize("door", ["function", "script"])
def test_ctrl_c_stops_all_ranks_and_prints_where_each_was(processes, door: str) -> None:
    process = processes[door]
    process.wait_for("all are there\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)  # not the hour that they sleep
    for rank in range(4):
        assert f"rank {rank} cleaned up" in out
    assert "interrupted; each rank was at" in err
    for call in ("dist.barrier()", "time.sleep(3600)", "dist.recv(torch.zeros(1), src=3)"):
        assert call in err
    assert "rank 3   computing" in err
    if door == "script":
        assert process.returncode == 130
        assert "Traceback" not in err
    else:
        assert process.returncode == -signal.SIGINT
        assert err.rstrip().endswith("KeyboardInterrupt")


def test_programs_may_do_something_about_ctrl_c(processes) -> None:
    process = processes["saving"]
    process.wait_for("all are there\n")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert [f"saved {rank}" in out for rank in range(3)] == [True] * 3


def test_ctrl_c_reaches_ranks_that_wait_and_lets_them_wait_for_their_own(processes) -> None:
    process = processes["cleaning"]
    process.wait_for("all are there\n")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert [f"{rank} cleaned up well" in out for rank in range(4)] == [True] * 4


def test_ctrl_c_stops_nested_runs_too(processes) -> None:
    process = processes["nested"]
    process.wait_for("all are there\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out.splitlines() == [
        "all are there",
        "inner rank 0 cleaned up",
        "inner rank 1 cleaned up",
        "left: ['MainThread']",
    ]
    assert "interrupted; each rank was at" in err


def test_a_rank_that_swallows_everything_does_not_hang_the_run(processes) -> None:
    out, err = processes["swallowing"].communicate(timeout=40)
    assert processes["swallowing"].returncode == 0, err
    assert out.startswith("rank 1 raised ValueError: bad batch\n")
    assert "stuck     rank 0 could not be stopped; it is at " in out


def test_a_stall_shows_what_is_polled_for_and_where_threads_are() -> None:
    def polls():
        work = dist.irecv(torch.empty(1), 0)
        while not work.is_completed():
            pass

    text = " ".join(str(fails(on_rank(1, polls), ranks=2, timeout=1)).split())
    assert "pending recv(src=0, tag=0) of rank 1 at" in text and "nothing has met it" in text

    def locks():
        lock = threading.Lock()

        def wants():
            with lock:
                pass

        with lock:
            thread = threading.Thread(target=wants, daemon=True)
            thread.start()
            while thread.is_alive():
                sum(range(1000))

    error = fails(locks, ranks=2, timeout=1)
    assert isinstance(error, phalanx.StallError)
    text = " ".join(str(error).split())
    assert "thread of rank 0 at" in text and "in wants: with lock:" in text


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_an_error_that_cannot_say_what_it_is_fails_its_rank_alone(
    engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            raise Mute
        dist.barrier()

    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(body, ranks=2, engine=engine)
    report = str(caught.value)
    assert report.startswith("rank 1 raised Mute: <exception str() failed>\n")
    assert "rank 0 in barrier() (call #0)" in report
    assert "no words" not in capfd.readouterr().err
