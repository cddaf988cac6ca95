"""Run Python programs in forks of a process that has imported torch.

The import takes most of the time of a small program. A program that must be seen to begin
alone, or that needs a terminal, is started with `subprocess` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

READ_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "TORCH_", "TORCHINDUCTOR", "TMPDIR")
"""Variables that the interpreter, torch and their libraries read only once."""


def run_forked(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    timeout: float,
    merged: bool = False,
    fresh: bool = False,
    imported: Sequence[str] = ("torch.distributed",),
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` returns for this command, which begins with `sys.executable` and
    has no options of Python but `-m` and `-c`. With `merged`, stdout has also what the program
    writes to stderr. The program finds these modules `imported`; a `fresh` one is started anew
    and finds none. Raises `TimeoutExpired` as `subprocess.run` does."""
    assert command[0] == sys.executable
    environ = dict(os.environ if env is None else env)
    if fresh or _read_at_start(environ) != _read_at_start(os.environ):
        return subprocess.run(
            command,
            cwd=cwd,
            env=environ,
            input=input,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            timeout=timeout,
        )
    with start_forked(
        command, cwd=cwd, env=environ, input=input, merged=merged, imported=imported
    ) as program:
        out, err = program.communicate(timeout)
        return subprocess.CompletedProcess(command, program.wait(), out, err)


class ForkedProgram:
    """What `subprocess.Popen` is, for a program in a fork."""

    def __init__(self, command: Sequence[str], place: tempfile.TemporaryDirectory[str]) -> None:
        self.args = command
        self.pid = 0
        self.returncode: int | None = None
        self._place = place
        self._given, self._out, self._err, self._end = (
            Path(place.name, name) for name in ("in", "out", "err", "end")
        )
        os.mkfifo(self._end)
        self._ended = os.open(self._end, os.O_RDONLY | os.O_NONBLOCK)

    def start(
        self,
        server: _Server,
        folder: Path,
        environ: Mapping[str, str],
        input: str | None,
        merged: bool,
    ) -> None:
        self._given.write_text(input or "")
        self._out.touch()
        self._err.touch()
        request = {
            "command": list(self.args[1:]),
            "folder": str(folder),
            "environ": dict(environ),
            "in": str(self._given),
            "out": str(self._out),
            "err": None if merged else str(self._err),
            "ended": str(self._end),
        }
        self.pid = server.fork(request)

    def wait_for(self, text: str, timeout: float = 50) -> None:
        """Until it has written this to standard output."""
        end = time.monotonic() + timeout
        while text not in self._out.read_text():
            assert self.poll() is None, self.communicate()
            assert time.monotonic() < end, self._out.read_text()
            time.sleep(0.02)

    def written(self) -> str:
        """What it has written to standard output until now."""
        return self._out.read_text()

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.args), timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(os.read(self._ended, 32)))
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote, when it has ended."""
        self.wait(timeout)
        return self._out.read_text(), self._err.read_text()

    def send_signal(self, number: int) -> None:
        self._send(os.kill, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _send(self, send: Callable[[int, int], None], number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # ended, and its end is not told yet
                send(self.pid, number)

    def __enter__(self) -> ForkedProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self._send(os.killpg, signal.SIGKILL)
        self.wait()
        os.close(self._ended)
        self._place.cleanup()


def start_forked(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    merged: bool = False,
    imported: Sequence[str] = ("torch.distributed",),
) -> ForkedProgram:
    """Start what `run_forked` runs. Leave its `with` block to end it and to forget it."""
    assert command[0] == sys.executable
    program = ForkedProgram(command, tempfile.TemporaryDirectory())
    environ = os.environ if env is None else env
    program.start(_server(tuple(imported)), cwd or Path.cwd(), environ, input, merged)
    return program


def _read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key.startswith(READ_AT_START)}


class _Server:
    """A process that forks. It starts with the first program and ends with this process."""

    def __init__(self, imported: Sequence[str]) -> None:
        self._imported = imported
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def fork(self, request: Mapping[str, object]) -> int:
        """Begin this program; its process id."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = self._start()
            assert process.stdin and process.stdout
            print(json.dumps(request), file=process.stdin, flush=True)
            return int(process.stdout.readline())

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_main.py")), *self._imported],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        atexit.register(process.communicate)
        return process


@functools.cache
def _server(imported: tuple[str, ...]) -> _Server:
    return _Server(imported)
