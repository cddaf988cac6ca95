"""`input()` and `breakpoint()` in ranks that are processes, at a real terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import textwrap
import time
from contextlib import suppress

import pytest

from tests.forked_programs import run_forked

SCRIPT = """
import sys
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if sys.argv[1] == "ask" and rank == 0:
    print("hello", input("name? "))
if sys.argv[1] == "stop" and rank == 1:
    secret = 42
    breakpoint()
    print("went on")
dist.barrier()
"""


@pytest.fixture
def command(tmp_path):
    script = tmp_path / "ask.py"
    script.write_text(textwrap.dedent(SCRIPT))

    def words(engine: str, how: str, *options: str) -> list[str]:
        line = f"-m phalanx run -n 2 --engine {engine} {' '.join(options)} {script} {how}"
        return [sys.executable, *line.split()]

    return words


class Terminal:
    """A pseudo terminal with a program on it, and somebody who types."""

    def __init__(self, command: list[str]) -> None:
        self.shown = ""
        self._ours, theirs = pty.openpty()
        self.program = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + 40
        while text not in self.shown and time.monotonic() < until:
            if select.select([self._ours], [], [], 0.2)[0]:
                with suppress(OSError):  # the other end was closed
                    self.shown += os.read(self._ours, 4096).decode()
        assert text in self.shown, self.shown

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._ours)


@pytest.mark.parametrize(
    "engine", ["processes", pytest.param("torchrun", marks=pytest.mark.slow)]
)
def test_a_rank_asks_the_terminal(command, engine) -> None:
    with Terminal(command(engine, "ask")) as terminal:
        terminal.wait_for("[0] name? ")
        terminal.type("Ada\n")
        terminal.wait_for("[0]   hello Ada\r\n")
        assert terminal.program.wait(30) == 0


@pytest.mark.slow
def test_a_breakpoint_in_one_rank(command) -> None:
    with Terminal(command("processes", "stop")) as terminal:
        terminal.wait_for("[1] (Pdb) ")
        terminal.type("p secret + 1\n")
        terminal.wait_for("43\r\n[1] (Pdb) ")
        terminal.type("continue\n")
        terminal.wait_for("[1]   went on\r\n")
        assert terminal.program.wait(30) == 0


THINKS = 2.5
"""Seconds that somebody looks at a prompt, longer than ranks may stand still."""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "torchrun"])
def test_a_rank_at_a_prompt_does_not_stall(command, engine) -> None:
    with Terminal(command(engine, "stop", "--timeout", "2")) as terminal:
        terminal.wait_for("[1] (Pdb) ")
        time.sleep(THINKS)
        terminal.type("continue\n")
        terminal.wait_for("[1]   went on\r\n")
        assert terminal.program.wait(30) == 0


CALLED = """
import phalanx
import torch.distributed as dist

def ask():
    if dist.get_rank() == 1:
        secret = 42
        breakpoint()
        return input("more? ")

if __name__ == "__main__":
    print(phalanx.run(ask, ranks=2, engine="processes", timeout=2))
"""


@pytest.mark.slow
def test_functions_ask_as_scripts_do(tmp_path) -> None:
    program = tmp_path / "called.py"
    program.write_text(CALLED)
    with Terminal([sys.executable, str(program)]) as terminal:
        terminal.wait_for("[1] (Pdb) ")
        time.sleep(THINKS)
        terminal.type("c\n")
        terminal.wait_for("[1] more? ")
        terminal.type("yes\n")
        terminal.wait_for("[None, 'yes']")
        assert terminal.program.wait(30) == 0


TESTED = """
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2)
def test_stops(rank):
    secret = 42 + rank
    if rank == 1:
        HOW
    dist.barrier()

def test_next():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "then", "end"),
    [
        ("breakpoint()", "c", "2 passed"),
        pytest.param("pytest.set_trace()", "q", "Quitting debugger", marks=pytest.mark.slow),
    ],
)
def test_a_breakpoint_in_a_test_on_processes(tmp_path, how, then, end) -> None:
    test = tmp_path / "test_stops.py"
    test.write_text(TESTED.replace("HOW", how))
    options = ["--color=no", "--ranks-engine", "processes", "--ranks-timeout", "10"]
    with Terminal([sys.executable, "-m", "pytest", *options, str(test)]) as terminal:
        terminal.wait_for("[1] (Pdb) ")
        terminal.type("p secret + 1\n")
        terminal.wait_for("44\r\n[1] (Pdb) ")
        terminal.type(f"{then}\n")
        terminal.wait_for(end)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("ask", "EOFError: EOF when reading a line"),
        ("stop", "UsageError: rank 1 asks for input, but standard input is no"),
    ],
)
def test_without_a_terminal_there_is_nobody_to_ask(command, how, error) -> None:
    done = subprocess.run(
        command("processes", how),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 1
    assert error in done.stderr


READS = """
import sys
import torch.distributed as dist

dist.init_process_group("gloo")
first = sys.stdin.readline()
print(repr(first), sys.stdin.read().split(), sys.stdin.buffer.read(), sys.stdin.isatty())
"""


@pytest.mark.parametrize(
    "engine", ["processes", pytest.param("torchrun", marks=pytest.mark.slow)]
)
def test_ranks_read_what_is_no_terminal(tmp_path, engine) -> None:
    script = tmp_path / "reads.py"
    script.write_text(READS)
    command = [sys.executable, "-m", "phalanx", "run", "-n", "2", "--engine", engine]
    command.append(str(script))
    done = run_forked(command, input="one\ntwo three\n", timeout=50)
    assert done.stdout.count(r"'one\n' ['two', 'three'] b'' False") == (
        1 if "[0-1]" in done.stdout else 2
    ), done.stdout + done.stderr
    done = run_forked(command, timeout=50)
    assert done.returncode == 0 and "'' [] b'' False" in done.stdout, done.stderr
