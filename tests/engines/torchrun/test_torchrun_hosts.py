"""The torchrun engine on two machines: two network namespaces, joined by a cable, each with
its own address and a loopback interface that leads nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(150)

ADDRESSES = ("10.213.77.1", "10.213.77.2")
PORT = 29417
EXAMPLE = Path(__file__).parents[3] / "examples" / "ddp_train.py"

PROGRAM = """
import os, sys
import torch, torch.distributed as dist

how = sys.argv[1]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
dist.barrier()
if how == "die" and rank == 1:
    os.kill(os.getpid(), 9)
if how == "raise" and rank == 3:
    raise ValueError("bad batch")
if how == "mismatch" and rank == 3:
    dist.barrier()
elif how == "deadlock":
    dist.recv(torch.ones(3), src=(rank + 1) % size)
else:
    dist.all_reduce(torch.ones(4))
"""

RESTARTED = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist

mark = Path("failed")
first = not mark.exists()
dist.init_process_group("gloo")
dist.barrier()
if first and dist.get_rank() == 3:
    mark.touch()
    raise ValueError("once")
if first:
    time.sleep(60)
if dist.get_rank() == 1:
    dist.barrier()
dist.all_reduce(torch.ones(4))
"""


def ip(*words: str) -> None:
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("there is no command ip here")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: ip {' '.join(words)}: {error.stderr.strip()}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    """The names of two namespaces that reach each other; removed in any case."""
    names = [f"phalanx-{os.getpid()}-{number}" for number in (1, 2)]
    try:
        for name in names:
            ip("netns", "add", name)
        one, other = names
        ip("link", "add", "cable1", "netns", one, "type", "veth", "peer", "name", "cable2",
           "netns", other)  # fmt: skip
        for number, name in enumerate(names):
            cable = f"cable{number + 1}"
            ip("-n", name, "addr", "add", f"{ADDRESSES[number]}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


@dataclass
class Answer:
    status: int
    out: str
    err: str


@pytest.fixture
def on_both(hosts, tmp_path):
    """Start the same line on both machines, as a user would; what each of them says."""

    def run(*words: str) -> list[Answer]:
        line = ["-m", "phalanx", "run", "--engine", "torchrun", "--nnodes", "2", "-n", "2"]
        line += ["--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", *words]
        started = [
            subprocess.Popen(
                ["ip", "netns", "exec", host, sys.executable, *line],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for host in hosts
        ]
        try:
            said = [each.communicate(timeout=100) for each in started]
        finally:
            for each in started:
                each.kill()
        return [
            Answer(each.returncode, out, without_torchs(err))
            for each, (out, err) in zip(started, said, strict=True)
        ]

    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "restarted.py").write_text(textwrap.dedent(RESTARTED))
    return run


def without_torchs(text: str) -> str:
    """torch complains that the addresses have no names."""
    return "".join(
        line for line in text.splitlines(keepends=True) if "socket cannot be retr" not in line
    )


@pytest.mark.slow
def test_training_on_two_machines(on_both) -> None:
    answers = on_both(str(EXAMPLE), "--epochs", "2")
    assert [each.status for each in answers] == [0, 0], answers
    shown = sorted(each.out.splitlines()[-1] for each in answers)
    assert [line.split(" ", 1)[0] for line in shown] == ["[0-1]", "[2-3]"]
    losses = {line.split("loss ")[1] for line in shown}
    assert len(losses) == 1  # the same average on both


@pytest.mark.slow
def test_a_mismatch_between_machines_is_told_on_both(on_both) -> None:
    for each in on_both("program.py", "mismatch"):
        assert each.status == 3
        assert each.err.startswith(
            "CollectiveMismatchError: rank 3 called barrier where ranks 0-2 called all_reduce\n"
        )
        assert "program.py:14 in <module>\n              >  dist.barrier()" in each.err


@pytest.mark.slow
def test_a_deadlock_across_machines_is_proved_on_both(on_both) -> None:
    for each in on_both("program.py", "deadlock"):
        assert each.status == 3
        assert "cycle     rank 0 -> rank 1 -> rank 2 -> rank 3 -> rank 0" in each.err
        assert "proof     4 of 4 ranks blocked" in each.err


@pytest.mark.slow
def test_a_rank_that_dies_is_told_where_it_did(on_both) -> None:
    answers = on_both("program.py", "die")
    assert [each.status for each in answers] == [1, 1]
    there, other = sorted(answers, key=lambda each: "another machine" in each.err)
    assert there.err.startswith("RankFailedError: rank 1 died of SIGKILL\n")
    assert "stopped   ranks 0, 2, 3 in all_reduce(op=SUM) (call #1)" in there.err
    assert "ended because a rank of another machine failed" in other.err


@pytest.mark.slow
def test_an_exception_on_the_second_machine_is_told_on_both(on_both) -> None:
    answers = on_both("program.py", "raise")
    assert [each.status for each in answers] == [1, 1]
    there, referee = sorted(answers, key=lambda each: not each.err.startswith("Traceback"))
    headline = "RankFailedError: rank 3 raised ValueError: bad batch\n"
    assert headline in there.err and referee.err.startswith(headline)
    assert "program.py:12 in <module>" in there.err
    assert "stopped   ranks 0-2 in all_reduce(op=SUM) (call #1)" in referee.err


@pytest.mark.slow
def test_ranks_that_only_one_machine_counts_a_restart_of_are_checked(on_both) -> None:
    for each in on_both("--max-restarts", "2", "restarted.py"):
        assert "torch's launcher starts the ranks again\n" in each.err
        assert each.status == 3
        assert "CollectiveMismatchError: rank 1 called barrier where ranks 0, 2, 3" in each.err


def test_nothing_is_left_of_the_machines_processes(hosts) -> None:
    for host in hosts:
        found = subprocess.run(
            ["ip", "netns", "pids", host], capture_output=True, text=True, timeout=20
        )
        assert found.stdout == ""
