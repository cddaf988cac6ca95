"""A run that waits in vain for something that is no rank ends within its timeout."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch.distributed as dist

import phalanx
from phalanx.engines.process_table import (
    Work,
    family_of,
    held,
    is_stopped,
    kill_all,
    kill_group,
)
from phalanx.engines.processes.fork_server import fork_server

PROGRAM = """\
import os, pathlib, sys
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    pathlib.Path("begun").touch()
while not os.path.exists("go on"):
    dist.barrier()
    if dist.get_rank() == 0 and os.path.exists("stopped"):
        pathlib.Path("go on").touch()
    dist.barrier()
"""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        while not is_stopped(pid):
            time.sleep(0.001)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def world() -> phalanx.World:
    return phalanx.World(ranks=2, engine="processes", backend="gloo", timeout=1.0)


@pytest.mark.slow
def test_a_stopped_parent_of_ranks_before_they_live() -> None:
    with world() as first:
        first.run(dist.get_rank)  # it has loaded torch
    pid = fork_server().pid
    with stopped(pid), world() as second, pytest.raises(phalanx.StallError) as caught:
        second.run(dist.get_rank)
    headline = str(caught.value).splitlines()[0]
    assert headline.startswith("no sign of life for ")
    assert headline.endswith(
        f"waited for the process from which ranks are started (process {pid}, stopped) to "
        "start ranks"
    )
    with world() as third:
        assert third.run(dist.get_rank) == [0, 1]
    assert fork_server().pid != pid


@pytest.mark.slow
def test_a_stopped_parent_of_ranks_when_they_have_ended() -> None:
    first = world()
    ranks = first.run(os.getpid)
    pid = fork_server().pid
    with stopped(pid), pytest.raises(phalanx.StallError, match=r"to say how rank \d ended"):
        first.close()
    assert not [each for each in ranks if os.path.exists(f"/proc/{each}/exe")]


def run_and_stop(folder: Path, *, before: bool) -> tuple[int, str, list[int]]:
    """Stop torch's launcher before or while ranks live: how the run ends, what is left."""
    (folder / "program.py").write_text(PROGRAM)
    line = [sys.executable, "-m", "phalanx", "run", "--engine", "torchrun", "-n", "2"]
    run = subprocess.Popen(
        [*line, "--timeout", "1", "program.py"], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    while run.poll() is None and not (
        len(family_of(run.pid)) > 1 if before else (folder / "begun").exists()
    ):
        time.sleep(0.01)
    family = family_of(run.pid)
    os.kill(family[1], signal.SIGSTOP)
    (folder / "stopped").touch()
    _, err = run.communicate(timeout=60)
    left = [each for each in family if os.path.exists(f"/proc/{each}/exe")]
    return run.returncode, err, left


@pytest.mark.programs
@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_stopped_launcher_of_torch(tmp_path, before) -> None:
    status, err, left = run_and_stop(tmp_path, before=before)
    assert (status, left) == (3, [])
    wanted = "start ranks" if before else "end"
    assert err.startswith("StallError: no sign of life for ")
    assert f", stopped) to {wanted}\n" in err


def can_leave_the_network() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.call([unshare, "-n", "true"]) == 0


@pytest.mark.programs
@pytest.mark.slow
def test_a_machine_without_a_network(tmp_path) -> None:
    if not can_leave_the_network():
        pytest.skip("may not make a network namespace")
    (tmp_path / "program.py").write_text(PROGRAM)
    line = [sys.executable, "-m", "phalanx", "run", "--engine", "torchrun", "-n", "2"]
    done = subprocess.run(
        ["unshare", "-n", *line, "--timeout", "2", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert "waited for torch's launcher (process " in done.stderr
    assert "this machine has no loopback network (127.0.0.1: " in done.stderr


# -- what the system tells of processes ------------------------------------------------------


def test_a_family_is_found_stopped_and_killed() -> None:
    line = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", line], stdin=subprocess.PIPE) as child:
        while len(family_of(child.pid)) < 2:
            time.sleep(0.01)
        family = family_of(child.pid)
        assert family[0] == child.pid and child.pid in family_of(os.getpid())
        with stopped(family[1]), held(family) as processes:
            assert is_stopped(family[1]) and not is_stopped(os.getpid())
            kill_all(processes)
            assert child.wait() == -signal.SIGKILL
    assert not is_stopped(child.pid)


SEMAPHORE = """\
import multiprocessing, subprocess, sys
lock = multiprocessing.get_context("spawn").Lock()
child = subprocess.Popen([sys.executable, "-c", "input()"])
print(lock._semlock.name, child.pid, flush=True)
child.wait()
"""


def test_a_group_that_is_killed_leaves_no_semaphores() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SEMAPHORE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    ) as leader:
        assert leader.stdout is not None
        name, child = leader.stdout.readline().split()
        semaphore = Path(f"/dev/shm/sem.{name.lstrip('/')}")
        assert semaphore.exists()
        kill_group(leader.pid)
        assert leader.wait() == -signal.SIGKILL
    while semaphore.exists() or os.path.exists(f"/proc/{child}/exe"):
        time.sleep(0.01)  # its tracker removes it, and ends
    kill_group(leader.pid)  # nobody is left


@pytest.mark.programs
def test_a_rank_that_dies_leaves_no_semaphores(tmp_path: Path) -> None:
    name = tmp_path / "name"

    def die() -> None:
        lock = multiprocessing.get_context("spawn").Lock()
        if dist.get_rank() == 1:
            name.write_text(lock._semlock.name)  # type: ignore[attr-defined]
            os._exit(7)
        dist.barrier()

    with pytest.raises(phalanx.RankFailedError):
        phalanx.run(die, ranks=2, engine="processes", backend="gloo")
    semaphore = Path(f"/dev/shm/sem.{name.read_text().lstrip('/')}")
    while semaphore.exists():
        time.sleep(0.01)


def test_who_computes_is_seen_and_who_waits_is_not(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("phalanx.engines.process_table.monotonic", lambda: now[0])
    monkeypatch.setattr("phalanx.engines.process_table.is_at_work", lambda pid: False)
    ticks = {1: 0, 2: 50}
    monkeypatch.setattr("phalanx.engines.process_table.cpu_ticks", ticks.__getitem__)
    work = Work(lambda: ticks)
    assert not work.is_time_to_look()
    now[0] += 2.0
    assert work.is_time_to_look() and work.goes_on()
    now[0] += 2.0
    assert not work.goes_on() and not work.is_time_to_look()
    ticks[1] += 100
    now[0] += 2.0
    assert work.goes_on()
