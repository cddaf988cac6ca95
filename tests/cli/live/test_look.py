"""`phalanx look` at runs that hang, on every engine, and at what is no run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.engines.look.look_address import find_addresses

SCRIPT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
def poll():
    while True:
        time.sleep(0.02)
if dist.get_rank() == 0:
    print("ready", flush=True)
    poll()
dist.barrier()
"""

FUNCTION = """
import time, torch, torch.distributed as dist, phalanx

def work():
    dist.all_reduce(torch.ones(2))
    def poll():
        while True:
            time.sleep(0.02)
    if dist.get_rank() == 0:
        print("ready", flush=True)
        poll()
    dist.barrier()

if __name__ == "__main__":
    phalanx.run(work, ranks=3)
"""


@contextmanager
def hanging(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that has printed that it is ready."""
    program = subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        assert "ready" in program.stdout.readline()
        yield program
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(30)
        assert program.stdout is not None
        program.stdout.close()


def look(capsys: pytest.CaptureFixture[str], *pid: str) -> tuple[int, str, str]:
    status = main(["look", *pid])
    out, err = capsys.readouterr()
    return status, out, err


def check_picture(text: str, engine: str, pid: int, file: str) -> None:
    first, _, *rows = text.splitlines()
    assert re.fullmatch(rf"process {pid}: 3 ranks on {engine}, for [\d.]+ s", first)
    asleep = rf"0 +(sleeping|running) +1 +after all_reduce\(op=SUM\) #0 +{file}:\d+ +[\d.]+ s"
    assert re.fullmatch(asleep, rows[0])
    assert re.fullmatch(
        rf"1, 2 +waiting +2 +barrier\(\) #1 +{file}:\d+ +rank 0 +[\d.]+ s", rows[1]
    )
    stacks = text.partition("\nrank 0\n")[2]
    assert re.search(rf"{file}:\d+ in poll  time.sleep", stacks)
    assert re.search(rf"ranks 1, 2\n(.*\n)*  {file}:\d+ in \S+  dist.barrier\(\)", stacks)


@pytest.mark.parametrize("engine", ["threads", "processes", "torchrun"])
def test_a_run_that_hangs(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hang.py").write_text(SCRIPT)
    line = ["-m", "phalanx", "run", "-n", "3", "--engine", engine, "hang.py"]
    with hanging(line, tmp_path) as program:
        picture = ""
        deadline = time.monotonic() + 20
        while not re.search(r"1, 2 +waiting", picture) and time.monotonic() < deadline:
            status, picture, err = look(capsys, str(program.pid))
            assert (status, err) == (0, "")
        check_picture(picture, engine, program.pid, "hang.py")
        status, listing, _ = look(capsys)
        assert status == 0
        assert re.search(rf"^ +{program.pid} +3 +{engine} .*hang.py$", listing, re.MULTILINE)
    assert not [each for each in find_addresses() if each.process == program.pid]


def test_a_python_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hang.py").write_text(FUNCTION)
    with hanging(["hang.py"], tmp_path) as program:
        picture = ""
        deadline = time.monotonic() + 20
        while not re.search(r"1, 2 +waiting", picture) and time.monotonic() < deadline:
            picture = look(capsys, str(program.pid))[1]
        check_picture(picture, "threads", program.pid, "hang.py")
        os.kill(program.pid, signal.SIGKILL)
        program.wait(30)
        assert not [each for each in find_addresses() if each.process == program.pid]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("abc", "look abc: give the number of a process, e.g. phalanx look 4711"),
        ("0", "give the number of a process"),
        ("2147483646", "there is no process 2147483646"),
        ("this", "runs no ranks of phalanx at present"),
    ],
)
def test_what_is_no_run(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = look(capsys, str(os.getpid()) if given == "this" else given)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
