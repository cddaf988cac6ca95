"""Ranks as processes: nothing is left behind, however a world, a run or the program ends."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.engines.processes import fork_server
from phalanx.engines.processes.rank_processes import RankProcesses
from phalanx.options import Options
from tests.forked_programs import start_forked

GLOO: dict[str, Any] = {"engine": "processes", "backend": "gloo", "timeout": 30.0}

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")


def send_in_a_thread(how: str) -> bool:
    """Rank 0 returns before its thread has sent what rank 1 waits for."""
    if dist.get_rank() == 1:
        dist.recv(torch.ones(1), src=0)
        return True

    def send() -> None:
        time.sleep(0.3)
        dist.send(torch.ones(1), 1)

    if how == "thread":
        threading.Thread(target=send).start()
    else:
        POOL.submit(send)
    return False


POOL = ThreadPoolExecutor(1)


# -- what runs in the ranks ---------------------------------------------------------------


def start_a_child() -> int:
    return subprocess.Popen(["sleep", "60"]).pid


def fork_a_child() -> int:
    """A child that a plain `fork` leaves with all of the rank's file descriptors."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid


def fork_and_die() -> None:
    if dist.get_rank() == 1:
        fork_a_child()
        os._exit(4)
    dist.barrier()


def fail_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("as planned")


def parent() -> int:
    return os.getppid()


# -- looking ------------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    """Zombies are dead, but still there: only their parent can let them go."""
    return Path(f"/proc/{pid}").exists()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def await_end(*pids: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_running, pids))


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- worlds -------------------------------------------------------------------------------


def test_the_second_world_comes_from_the_same_parent_and_leaves_nothing(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (first,) = phalanx.run(parent, ranks=1, **GLOO)
    files, environ = open_files(), dict(os.environ)
    for number in range(5):
        with phalanx.World(ranks=2, **GLOO) as world:
            pids = world.run(os.getpid)
            assert world.run(parent) == [first, first]
            if number % 2:
                with pytest.raises(phalanx.RankFailedError):
                    world.run(fail_on, 1)
        assert not any(map(is_alive, pids))
    assert open_files() == files
    assert dict(os.environ) == environ
    assert children(first) == []
    assert tempfile.gettempdir() == str(tmp_path) and os.listdir(tmp_path) == []


def how_a_fork_ends(how: str) -> int:
    child = os.fork()
    if child == 0:
        if how == "raise":
            raise ValueError("in the child")
        if how == "exit":
            sys.exit(5)
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("exit", 5), ("return", 0)])
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_forked_child_ends_as_a_process_does(engine: str, how: str, code: int, capfd) -> None:
    assert phalanx.run(how_a_fork_ends, how, ranks=2, engine=engine, init=False) == [code] * 2
    assert ("ValueError: in the child" in capfd.readouterr().err) == (how == "raise")


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_run_ends_when_the_threads_of_its_ranks_have(engine: str) -> None:
    with phalanx.World(ranks=2, engine=engine, backend="gloo", timeout=30.0) as world:
        for how in ("thread", "pool", "pool"):
            assert world.run(send_in_a_thread, how) == [False, True]


@pytest.mark.parametrize("start", [start_a_child, fork_a_child])
def test_what_a_rank_started_ends_with_it(start) -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        grandchildren = world.run(start)
        assert all(map(is_running, grandchildren))
    assert await_end(*grandchildren)


def test_a_rank_that_dies_is_noticed_although_its_child_lives_on() -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        world.run(dist.barrier)
        started = time.monotonic()
        with pytest.raises(phalanx.RankFailedError, match="rank 1 died with exit code 4"):
            world.run(fork_and_die)
        assert time.monotonic() - started < 15


def test_a_world_that_nobody_closed_ends_with_its_last_reference() -> None:
    world = phalanx.World(ranks=2, **GLOO)
    pids = world.run(os.getpid)
    files = open_files()
    del world
    gc.collect()
    assert await_end(*pids)
    assert open_files() < files
    phalanx.run(parent, ranks=1, **GLOO)
    assert not any(map(is_alive, pids))


def test_a_fork_of_the_program_keeps_its_hands_off_the_ranks() -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        pids = world.run(os.getpid)
        child = os.fork()
        if child == 0:
            del world
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        assert world.run(os.getpid) == pids


@pytest.mark.slow
def test_the_parent_of_ranks_is_replaced_when_it_dies() -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        pids = world.run(os.getpid)
        os.kill(world.run(parent)[0], signal.SIGKILL)
        assert await_end(*pids)
        with pytest.raises(phalanx.PhalanxError):
            world.run(parent)
        fresh = world.run(parent)
    assert fresh == [fork_server.fork_server().pid] * 2


# -- programs -----------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
import phalanx

def tell_and_wait(folder):
    name = os.path.join(folder, os.environ["RANK"])
    with open(name + ".part", "w") as file:
        file.write(f"{os.getpid()} {os.getppid()}")
    os.rename(name + ".part", name)
    time.sleep(60)

if __name__ == "__main__":
    phalanx.run(tell_and_wait, sys.argv[1], ranks=2, engine="processes", backend="gloo")
"""


@pytest.fixture
def program(tmp_path):
    """A program whose two ranks sleep: its process and those of the ranks and their parent."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    told = tmp_path / "told"
    told.mkdir()
    with start_forked([sys.executable, str(script), str(told)]) as process:
        while len([name for name in os.listdir(told) if name in "01"]) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        numbers = {int(n) for rank in "01" for n in (told / rank).read_text().split()}
        assert len(numbers) == 3
        yield process, numbers


def test_the_program_is_killed(program) -> None:
    process, others = program
    process.kill()
    assert await_end(*others)


def test_ctrl_c_says_where_each_rank_was(program) -> None:
    process, others = program
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=20)
    assert not any(map(is_running, others))
    assert process.returncode == -signal.SIGINT
    assert "interrupted; each rank was at" in text
    assert "time.sleep(60)" in text
    assert text.rstrip().endswith("KeyboardInterrupt")


STUBBORN = """
import os, signal, time
import phalanx

def deaf():
    signal.signal(signal.SIGINT, lambda *_: os.write(1, b"heard\\n"))
    os.write(1, b"ready\\n")  # not by print, which the handler could interrupt
    while True:
        time.sleep(0.05)

if __name__ == "__main__":
    phalanx.run(deaf, ranks=2, engine="processes", backend="gloo")
"""


@pytest.mark.slow  # by the speed of the machine
def test_a_second_ctrl_c_ends_ranks_that_will_not_hear_the_first(tmp_path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
            process.send_signal(signal.SIGINT)
            assert [process.stdout.readline() for _ in range(2)] == ["heard\n"] * 2
            time.sleep(1.0)  # twice as long as those have that hear nothing
            assert process.poll() is None
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)
            assert time.monotonic() - began < 2.5  # the first one would last four seconds more
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT


def test_a_rank_that_cannot_be_started_leaves_nothing_open(monkeypatch) -> None:
    def fork(given: list[int], patience: float) -> int:
        raise OSError(errno.EAGAIN, "no more processes")

    def pipe_once() -> tuple[int, int]:
        monkeypatch.setattr(os, "pipe", fail)
        return real_pipe()

    def fail() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "too many open files")

    def start() -> None:
        server = SimpleNamespace(fork=fork)
        ranks_alive = SimpleNamespace(fork_server=server, _fast_path=None, patience=1.0)
        RankProcesses._start(
            ranks_alive, SimpleNamespace(rank=0, options=Options(ranks=1)), None
        )  # type: ignore[arg-type]

    real_pipe = os.pipe
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no more processes"):
        start()
    monkeypatch.setattr(os, "pipe", pipe_once)
    with pytest.raises(OSError, match="too many open files"):
        start()
    assert set(os.listdir("/proc/self/fd")) <= before
