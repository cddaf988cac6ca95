"""Code that holds Python's lock: the process beside ends the run, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import phalanx
from phalanx.core import baton, lock_watch
from phalanx.core.lock_watch import LockWatch
from phalanx.engines.threads import lock_watcher
from phalanx.engines.threads.lock_watcher import LockWatcher
from phalanx.engines.threads.locked_stall import render_end, stall_of
from tests.forked_programs import ForkedProgram, run_forked, start_forked
from tests.testing.pytest_runs import run_pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="watched on Linux only")

SCRIPT = """
import ctypes, re
import torch.distributed as dist

def hold():
    {hold}

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    open("held", "w").close()
    hold()
dist.barrier()
"""
SLEEPS = "ctypes.PyDLL(None).sleep(1000)"
SPINS = 're.match(r"(a+)+$", "a" * 64 + "b")'
"""For longer than anybody lives, without a break."""


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "phalanx", "run", "-n", "3", *flags, "train.py"]


@linux
@pytest.mark.slow
@pytest.mark.parametrize("hold", [SLEEPS, SPINS])
def test_a_run_whose_lock_is_held_ends_with_the_stacks(tmp_path: Path, hold: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(hold=hold))
    ran = run_forked(command("--timeout", "2"), cwd=tmp_path, timeout=60)
    assert ran.returncode == 3
    lines = ran.stderr.splitlines()
    first = "StallError: no rank moved for 2 s; rank 1 holds Python's lock at train.py:6"
    assert lines[0] == first
    assert "  rank 1       holds Python's lock" in lines
    assert f"               >  {hold}" in lines
    assert "  ranks 0, 2   in barrier" in lines
    assert lines[-1].startswith("phalanx: ")
    assert ("ended from outside" in lines[-1]) == (hold == SPINS)


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("hold", "presses", "status"), [(SLEEPS, 1, 130), (SPINS, 1, -15), (SPINS, 2, -15)]
)
def test_ctrl_c_ends_it(tmp_path: Path, hold: str, presses: int, status: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(hold=hold))
    with start_forked(command(), cwd=tmp_path) as program:
        wait_for(tmp_path / "held", program)
        for _ in range(presses):
            os.kill(program.pid, signal.SIGINT)
            threading.Event().wait(0.2)  # else the second is the same as the first
        _, err = program.communicate(60)
        assert program.wait() == status
    assert "interrupted" in err
    if hold == SPINS:
        assert re.search(r"rank 1 .*\n +train.py:6 in hold", err)


def wait_for(path: Path, program: ForkedProgram) -> None:
    while not path.exists():
        assert program.poll() is None
        threading.Event().wait(0.02)


SUITE = f"""
import ctypes, re
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2, timeout=2)
def test_sleep(rank):
    if rank == 1:
        {SLEEPS}

@pytest.mark.ranks(2)
def test_between():
    dist.barrier()

@pytest.mark.ranks(2, timeout=2)
def test_spin(rank):
    if rank == 1:
        {SPINS}

@pytest.mark.ranks(2)
def test_late():
    dist.barrier()

def test_plain():
    pass
"""


@linux
@pytest.mark.slow
def test_pytest_goes_on_if_it_can_and_else_says_what_did_not_run(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, files={"test_it.py": SUITE})
    assert ran.code == 3
    assert "test_it.py F." in ran.text  # the test after the first one has run
    end = ran.text[ran.text.index("StallError") :]
    assert "rank 1 holds Python's lock at test_it.py:18" in end.splitlines()[0]
    assert end.splitlines()[-6:] == [
        "phalanx: test_it.py::test_spin[ranks=2] held Python's lock for 2 s; "
        "2 tests after it did not run:",
        "    test_it.py::test_late[ranks=2]",
        "    test_it.py::test_plain",
        "phalanx: had failed before, without a report here:",
        "    test_it.py::test_sleep[ranks=2]",
        "phalanx: the process was ended from outside: while its lock is held, Python can end "
        "nothing",
    ]


# -- what is left ---------------------------------------------------------------------------


def meet() -> None:
    dist.barrier()


def belongings() -> tuple[Any, ...]:
    handler = lock_watch._replace_handler(signal.SIG_DFL)
    lock_watch._replace_handler(handler)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return handler, wakeup, len(os.listdir("/proc/self/fd")), threading.active_count()


@linux
def test_nothing_is_left_in_the_process() -> None:
    phalanx.run(meet, ranks=2)
    before = belongings()
    phalanx.run(meet, ranks=2)
    assert belongings() == before


@linux
def test_one_process_serves_many_runs_and_is_nobodys_child() -> None:
    phalanx.run(meet, ranks=2)
    name = lock_watch._name
    phalanx.run(meet, ranks=2)
    assert name == lock_watch._name
    assert os.getpid() not in {parent for _, parent in watchers()}
    assert len(watchers()) == 1


def watchers() -> list[tuple[int, int]]:
    """Those of this process, and their parents, but for one that has just been started."""
    lock_watch._reap_first()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[3:5] == [lock_watcher.__file__.encode(), str(os.getpid()).encode()]:
                stat = (folder / "stat").read_text().rpartition(") ")[2]
                found.append((int(folder.name), int(stat.split()[1])))
    return found


@linux
def test_a_kept_connection_is_used_again_and_given_back() -> None:
    before = belongings()
    let_go = lock_watch.keep()
    phalanx.run(meet, ranks=2)
    kept = lock_watch._kept
    assert kept is not None
    phalanx.run(meet, ranks=2)
    assert lock_watch._kept is kept
    let_go()
    assert lock_watch._kept is None
    assert belongings() == before


@linux
def test_what_somebody_else_uses_is_left_alone(watch: LockWatch) -> None:
    end, other = os.pipe()
    os.set_blocking(other, False)
    before = signal.set_wakeup_fd(other)
    old = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        watch.begin()
        watch.close()
        assert signal.set_wakeup_fd(other) == other
        assert signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGQUIT, old)
        os.close(end)
        os.close(other)


@linux
def test_a_forked_child_is_not_watched(watch: LockWatch) -> None:
    watch.begin()
    companion = watch._companion
    assert companion is not None
    files = {companion._line.fileno(), *companion._files}
    pid = os.fork()
    if not pid:
        left = [file for file in files if (Path("/proc/self/fd") / str(file)).is_symlink()]
        free = lock_watch._watched is None and signal.set_wakeup_fd(-1) == -1
        os._exit(0 if free and len(files) == 4 and not left else 77)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert watch.close() is None


@pytest.fixture
def watch() -> Iterator[LockWatch]:
    terms = {"ranks": 1, "stall": 60.0, "work_counts": True, "limit": None, "replay": None}
    watch = LockWatch(lock_watcher.__file__, {**terms, "launcher": threading.get_native_id()})
    yield watch
    watch.close()


@linux
def test_a_nested_run_leaves_the_watch_to_the_outer_one(watch: LockWatch) -> None:
    watch.begin()
    inner = LockWatch(lock_watcher.__file__, {})
    inner.begin()
    assert lock_watch._watched is watch._companion
    assert inner._companion is None
    assert inner.close() is None
    assert lock_watch._watched is watch._companion


# -- when it acts ---------------------------------------------------------------------------


class Looks(LockWatcher):
    """The decision alone: told whether the launcher waits for the lock, and what it uses."""

    def __init__(self, **terms: Any) -> None:
        self._terms = {"stall": 5.0, "work_counts": False, "limit": None, **terms}
        self._run, self._number, self._presses = os.getpid(), 0, 0
        self._cpu = self._since_press = 0.0
        self._silent = self._locked = self._went_on = 0.0
        self.is_free, self.acted = False, list[dict[str, bool]]()

    def _is_free(self, passed: float) -> bool:
        return self.is_free

    def _act(self, **how: bool) -> None:
        self.acted.append(how)


def test_it_acts_after_the_timeout() -> None:
    looks = Looks()
    for _ in range(4):
        looks._look(1.0)
    assert looks.acted == []
    looks._look(1.0)
    assert looks.acted == [{}]


def test_a_moment_with_the_lock_starts_the_time_again() -> None:
    looks = Looks()
    for number in range(20):
        looks.is_free = number % 4 == 3
        looks._look(1.0)
    assert looks.acted == []


def test_a_short_timeout_is_no_reason_to_hurry() -> None:
    looks = Looks(stall=0.1)
    looks._look(1.0)
    assert looks.acted == []
    looks._look(1.0)
    assert looks.acted == [{}]


def test_without_a_timeout_computing_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, spent = Looks(stall=300.0, work_counts=True), 0.0

    def cpu_of(pid: int) -> float:
        nonlocal spent
        spent += 0.9
        return spent

    monkeypatch.setattr(lock_watcher, "_cpu_of", cpu_of)
    for _ in range(1000):
        looks._look(1.0)
    assert looks.acted == []
    monkeypatch.setattr(lock_watcher, "_cpu_of", lambda pid: spent)
    for _ in range(302):
        looks._look(1.0)
    assert looks.acted


def test_the_limit_of_the_whole_run() -> None:
    looks = Looks(stall=300.0, limit=10.0)
    looks.is_free = True
    for _ in range(9):
        looks._look(1.0)
    looks.is_free = False
    looks._look(1.0)
    assert looks.acted == []
    looks._look(1.0)
    assert looks.acted == [{"over_limit": True}]


@pytest.mark.parametrize(("presses", "seconds"), [(1, 3.0), (2, 0.5)])
def test_ctrl_c_once_and_twice(presses: int, seconds: float) -> None:
    looks = Looks(stall=300.0)
    looks._look(1.0)
    looks._note_signals(bytes([signal.SIGTERM] + presses * [signal.SIGINT]))
    for _ in range(round(seconds / 0.1) - 1):
        looks._look(0.1)
    assert looks.acted == []
    looks._look(0.11)
    assert looks.acted == [{"interrupted": True}]


def test_ctrl_c_that_python_has_seen_is_forgotten() -> None:
    looks = Looks(stall=300.0)
    looks._note_signals(bytes([signal.SIGINT]))
    looks.is_free = True
    looks._look(0.1)
    looks.is_free = False
    for _ in range(100):
        looks._look(0.1)
    assert looks.acted == []


# -- what it says ---------------------------------------------------------------------------

BATON = baton.__file__
DUMP = f"""Thread 0x00007f01 (most recent call first):
  File "{BATON}", line 9 in _await_turn
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 5 in barrier
  File "/x/site-packages/torch/distributed/c10d_logger.py", line 8 in wrapper
  File "/x/y, line 3 in z/train.py", line 20 in main

Current thread 0x00007f02 [rank-1] (most recent call first):
  File "/x/y, line 3 in z/train.py", line 11 in hold
  File "/x/y, line 3 in z/train.py", line 20 in main
"""


def test_the_stacks_are_read_as_they_are_written() -> None:
    stacks = lock_watcher._read_stacks(DUMP)
    assert stacks[0x7F02] == [
        ["/x/y, line 3 in z/train.py", 11, "hold"],
        ["/x/y, line 3 in z/train.py", 20, "main"],
    ]
    assert lock_watcher._is_parked(stacks[0x7F01])
    assert not lock_watcher._is_parked(stacks[0x7F02])


def seen(**more: Any) -> dict[str, Any]:
    stacks = lock_watcher._read_stacks(DUMP)
    threads = [
        {"rank": rank, "thread": None, "ident": ident, "stack": stacks[ident]}
        for rank, ident in enumerate((0x7F01, 0x7F02))
    ]
    return {"threads": threads, "ranks": [1], "seconds": 5.0, **more}


def test_a_stall_with_the_rank_that_holds_the_lock() -> None:
    stall = stall_of(seen(), 3)
    status = {rank: block.view.status for block in stall.blocks for rank in block.ranks}
    assert status == {0: "waiting", 1: "holding", 2: "ready"}
    assert stall.ranks == (1,)
    assert [site.function for site in stall.stacks[1]] == ["main", "hold"]


def test_nobody_is_named_who_may_not_be_it() -> None:
    stall = stall_of(seen(ranks=[]), 2)
    assert stall.ranks == ()
    text = render_end(seen(ranks=[]), {"ranks": 2, "replay": None}, interrupted=False)
    first = (
        "StallError: no rank moved for 5 s; code outside Phalanx's sight holds Python's lock"
    )
    assert text.splitlines()[0] == first


def test_the_tests_that_did_not_run() -> None:
    told = seen(test="t.py::a", after=[["t.py::b"], 3], failed=[[], 0])
    text = render_end(told, {"ranks": 2, "replay": "pytest t.py::a"}, interrupted=False)
    assert text.splitlines()[-4:-1] == [
        "phalanx: t.py::a held Python's lock for 5 s; 3 tests after it did not run:",
        "    t.py::b",
        "    and 2 more",
    ]
